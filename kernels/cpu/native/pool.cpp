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
    for (Counter& counter : counters_) counter.next.store(0, std::memory_order_relaxed);
    started_.fetch_add(1);
    wake(started_);
    entry(job, team);
    team.barrier();
}

void Pool::work(int index) {
    for (uint32_t seen = 0;;) {
        wait_while(started_, seen);
        seen++;
        if (stop_) return;
        Team team(*this, index, size_);
        entry_(job_, team);
        team.barrier();
    }
}

void Pool::wait_while(std::atomic<uint32_t>& word, uint32_t value) {
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

void Pool::wake(std::atomic<uint32_t>& word) {
    // A sleeper counts itself before the kernel compares the word, and the word was changed before this reads the count.
    if (sleepers_.load() > 0) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Team::barrier() {
    if (count == 1) return;
    uint32_t phase = pool_.phase_.load(std::memory_order_acquire);
    if (pool_.arrived_.fetch_add(1) == count - 1) {
        pool_.arrived_.store(0);
        pool_.phase_.fetch_add(1);
        pool_.wake(pool_.phase_);
    } else {
        pool_.wait_while(pool_.phase_, phase);
    }
}

}  // namespace bosquet
