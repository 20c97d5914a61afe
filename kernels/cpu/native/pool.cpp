#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace bosquet {

namespace {

constexpr int64_t SPIN_NS = 50'000;
constexpr uint32_t OPEN = 1u << 31;
constexpr int LINE = 64;

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void pin(std::thread& thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace

Pool::Pool(int threads, const std::vector<int>& cpus) : size_(threads < 1 ? 1 : threads) {
    for (int i = 1; i < size_; i++) {
        threads_.emplace_back([this, i] { work(i); });
        if (!cpus.empty()) pin(threads_.back(), cpus[i % cpus.size()]);
    }
}

Pool::~Pool() {
    stop_ = true;
    started_.fetch_add(1);
    wake(started_);
    for (std::thread& thread : threads_) thread.join();
}

void Pool::start(Entry entry, const void* job) {
    Team team(*this, 0, size_);
    if (size_ == 1) {
        entry(job, team);
        return;
    }
    entry_ = entry;
    job_ = job;
    ticket_.store(ticket(0, 0));
    gate_.store(OPEN);
    started_.fetch_add(1);
    wake(started_);
    entry(job, team);
    for (uint32_t inside = gate_.fetch_and(~OPEN) & ~OPEN; inside; inside = gate_.load()) wait_while(gate_, inside);
}

void Pool::work(int index) {
    for (uint32_t seen = 0;;) {
        wait_while(started_, seen);
        seen = started_.load();
        if (stop_) return;
        if (!enter()) continue;
        Team team(*this, index, size_);
        entry_(job_, team);
        leave();
    }
}

bool Pool::enter() {
    uint32_t gate = gate_.load();
    while (gate & OPEN)
        if (gate_.compare_exchange_weak(gate, gate + 1)) return true;
    return false;
}

void Pool::leave() {
    if (gate_.fetch_sub(1) == 1) wake(gate_);  // the last one, of a job that is closed
}

uint32_t Pool::take(uint32_t loop, uint32_t pieces) {
    uint64_t next = ticket_.load();
    while (next < ticket(loop, pieces))
        if (ticket_.compare_exchange_weak(next, next + 1)) return (uint32_t)next;
    return pieces;
}

void Pool::finish(uint32_t loop, uint32_t done, uint32_t n) {
    if (done == 0 || done_.fetch_add(done) + done < n) return;
    done_.store(0);
    ticket_.store(ticket(loop + 1, 0));
    ended_.fetch_add(1);
    wake(ended_);
}

void Pool::await_end(uint32_t loop, Team& team) {
    for (; team.fetch_ < team.fetch_end_ && !ended(loop); team.fetch_ += 2 * LINE) {
        _mm_prefetch(team.fetch_, _MM_HINT_T1);
        _mm_prefetch(team.fetch_ + LINE, _MM_HINT_T1);
    }
    for (;;) {
        const uint32_t seen = ended_.load();
        if (ended(loop)) return;
        wait_while(ended_, seen);
    }
}

void Pool::wait_while(Word& word, uint32_t value) {
    int64_t until = 0;
    for (int turn = 1; word.load(std::memory_order_acquire) == value; turn++) {
        _mm_pause();
        if (turn % 64) continue;
        int64_t now = now_ns();
        if (until == 0) {
            until = now + SPIN_NS;
        } else if (now > until) {
            sleepers_.fetch_add(1);
            syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
            sleepers_.fetch_sub(1);
        }
    }
}

void Pool::wake(Word& word) {
    // A sleeper counts itself before the kernel compares the word, and the word was changed before this reads the count.
    if (sleepers_.load() > 0) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace bosquet
