// One persistent pool of threads. A job is one function that every member runs; inside it the members share loops. A loop ends
// when its pieces are done, whoever did them: a member that the machine does not run just now holds nobody up unless it is
// inside a piece. Waiting members spin for at most 50 µs, then sleep, so an idle pool uses no processor time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace bosquet {

class Pool;

// What one member of a running job sees. `index` 0 is the thread that called `Pool::run`. A member may come late, to loops that
// are long done, and passes through them: what stands between loops must be the same for all and change nothing.
class Team {
public:
    int index, count;

    Team(Pool& pool, int index, int count) : index(index), count(count), pool_(pool) {}

    // body(i) once for every i in 0 … n − 1, in pieces of `grain`, by whichever member comes first; all are done when it
    // returns. All members must call it with the same arguments.
    template <class Body>
    void each(int64_t n, int64_t grain, Body body) {
        pieces(n, grain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) body(i);
        });
    }

    // The same with body(begin, end) for pieces of at most `grain` that cover 0 … n − 1.
    template <class Body>
    void pieces(int64_t n, int64_t grain, Body body);

    // The same with pieces of at most `most` that get smaller towards the end, down to one, so that all members end together.
    template <class Body>
    void guided(int64_t n, int64_t most, Body body);

    // What a loop to come reads first from memory: this member fetches it while it waits.
    void fetch(const void* from, size_t bytes) { fetch_ = (const char*)from, fetch_end_ = fetch_ + bytes; }

private:
    friend class Pool;
    // Shares 0 … n − 1 out in at most `pieces` pieces, as `cut` says.
    template <class Cut, class Body>
    void share(int64_t n, int64_t pieces, Cut cut, Body body);

    Pool& pool_;
    uint32_t loop_ = 0;
    const char *fetch_ = nullptr, *fetch_end_ = nullptr;
};

class Pool {
public:
    // `cpus`: the processors to pin the members to, in order; empty: not pinned. The caller's thread is not pinned.
    Pool(int threads, const std::vector<int>& cpus);
    ~Pool();
    Pool(const Pool&) = delete;

    int size() const { return size_; }

    // Runs job(team) on every member that comes in time, and returns when all of it is done. Not reentrant; one caller at a time.
    template <class Job>
    void run(const Job& job) {
        start([](const void* what, Team& team) { (*(const Job*)what)(team); }, &job);
    }

private:
    friend class Team;
    using Entry = void (*)(const void*, Team&);
    using Word = std::atomic<uint32_t>;

    void start(Entry entry, const void* job);
    void work(int index);
    bool enter();
    void leave();

    // A loop and its next piece in one word, so that no piece of a loop that is over can be taken.
    static uint64_t ticket(uint32_t loop, uint32_t piece) { return (uint64_t)loop << 32 | piece; }
    // The number of a piece of `loop` that is now the caller's, or `pieces` when there is none left.
    uint32_t take(uint32_t loop, uint32_t pieces);
    void finish(uint32_t loop, uint32_t done, uint32_t n);
    void await_end(uint32_t loop, Team& team);
    bool ended(uint32_t loop) const { return ticket_.load(std::memory_order_acquire) > ticket(loop, UINT32_MAX); }

    void wait_while(Word& word, uint32_t value);
    void wake(Word& word);

    const int size_;
    std::vector<std::thread> threads_;
    Entry entry_ = nullptr;
    const void* job_ = nullptr;
    std::atomic<bool> stop_{false};
    alignas(64) Word started_{0};  // number of jobs started
    alignas(64) Word gate_{0};     // members inside the job besides the caller, and OPEN while more may enter
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) Word done_{0};     // how much of the running loop is done
    alignas(64) Word ended_{0};    // number of loops that have ended
    alignas(64) Word sleepers_{0};
};

// Where a piece begins and ends; asked for pieces in rising order. A piece that begins at n is none.
struct Even {
    int64_t n, grain;
    std::pair<int64_t, int64_t> operator()(uint32_t piece) const {
        return {std::min(piece * grain, n), std::min((piece + 1) * grain, n)};
    }
};

struct Guided {
    int64_t n, most, parts;
    int64_t at = 0;
    uint32_t next = 0;
    std::pair<int64_t, int64_t> operator()(uint32_t piece) {
        for (; next < piece && at < n; next++) at += size();
        return {at, at + size()};
    }
    int64_t size() const { return std::clamp((n - at) / parts, (int64_t)1, most); }
};

template <class Cut, class Body>
void Team::share(int64_t n, int64_t pieces, Cut cut, Body body) {
    if (n <= 0) return;
    if (count == 1) {
        body((int64_t)0, n);
        return;
    }
    const uint32_t loop = loop_++;
    uint32_t done = 0;
    for (uint32_t piece; (piece = pool_.take(loop, (uint32_t)pieces)) < pieces;) {
        const auto [begin, end] = cut(piece);
        if (begin >= n) break;
        body(begin, end);
        done += (uint32_t)(end - begin);
    }
    pool_.finish(loop, done, (uint32_t)n);
    pool_.await_end(loop, *this);
}

template <class Body>
void Team::pieces(int64_t n, int64_t grain, Body body) {
    share(n, (n + grain - 1) / grain, Even{n, grain}, body);
}

template <class Body>
void Team::guided(int64_t n, int64_t most, Body body) {
    share(n, n, Guided{n, most, 2 * count}, body);
}

}  // namespace bosquet
