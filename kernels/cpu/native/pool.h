// One persistent pool of threads. A job is one function that every member runs; inside it the members share loops and meet
// at barriers. Waiting members spin for at most 50 µs, then sleep, so an idle pool uses no processor time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace bosquet {

class Pool;

// What one member of a running job sees. `index` 0 is the thread that called `Pool::run`.
class Team {
public:
    int index, count;

    Team(Pool& pool, int index, int count) : index(index), count(count), pool_(pool) {}

    void barrier();

    // body(i) once for every i in 0 … n − 1, in pieces of `grain`, by whichever member comes first; then a barrier.
    // All members must call it with the same arguments.
    template <class Body>
    void each(int64_t n, int64_t grain, Body body) {
        pieces(n, grain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) body(i);
        });
    }

    // body(begin, end) for pieces of at most `grain` that cover 0 … n − 1; then a barrier.
    template <class Body>
    void pieces(int64_t n, int64_t grain, Body body);

private:
    Pool& pool_;
    unsigned loop_ = 0;
};

class Pool {
public:
    // `cpus`: the processors to pin the members to, in order; empty: not pinned. The caller's thread is not pinned.
    Pool(int threads, const std::vector<int>& cpus);
    ~Pool();
    Pool(const Pool&) = delete;

    int size() const { return size_; }

    // Runs job(team) on every member and returns when all have finished. Not reentrant; one caller at a time.
    template <class Job>
    void run(const Job& job) {
        start([](const void* what, Team& team) { (*(const Job*)what)(team); }, &job);
    }

private:
    friend class Team;
    using Entry = void (*)(const void*, Team&);

    void start(Entry entry, const void* job);
    void work(int index);
    void wait_while(std::atomic<uint32_t>& word, uint32_t value);
    void wake(std::atomic<uint32_t>& word);

    const int size_;
    std::vector<std::thread> threads_;
    Entry entry_ = nullptr;
    const void* job_ = nullptr;
    bool stop_ = false;
    alignas(64) std::atomic<uint32_t> started_{0};  // number of jobs started
    alignas(64) std::atomic<uint32_t> phase_{0};    // number of barriers passed
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    struct alignas(64) Counter {
        std::atomic<int64_t> next{0};
    };
    Counter counters_[4];
};

template <class Body>
void Team::pieces(int64_t n, int64_t grain, Body body) {
    if (count == 1) {
        if (n > 0) body((int64_t)0, n);
        return;
    }
    // Four counters in turn: when a member is in loop i + 1, nobody is in loop i any more, so its counter can be set back.
    std::atomic<int64_t>& next = pool_.counters_[loop_++ % 4].next;
    for (;;) {
        int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= n) break;
        body(begin, begin + grain < n ? begin + grain : n);
    }
    barrier();
    if (index == 0) next.store(0, std::memory_order_relaxed);
}

}  // namespace bosquet
