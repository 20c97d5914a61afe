// What every exported function gets as its first argument: one pool of threads, and the memory of weights.
#pragma once

#include <cstdlib>
#include <new>
#include <vector>

#include "arena.h"
#include "pool.h"

#define BOSQUET_EXPORT extern "C" __attribute__((visibility("default")))

namespace bosquet {

// Memory on a cache line's boundary, kept between calls; grows, never shrinks. Contents do not survive growing.
template <class T>
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }
    T* take(size_t count) {
        if (count > size_) {
            std::free(data_);
            size_ = count + count / 4;
            data_ = (T*)std::aligned_alloc(64, (size_ * sizeof(T) + 127) / 64 * 64);
            if (!data_) throw std::bad_alloc();
        }
        return data_;
    }

private:
    T* data_ = nullptr;
    size_t size_ = 0;
};

struct Context {
    Pool pool;
    Arena weights;
    Context(int threads, const std::vector<int>& cpus) : pool(threads, cpus) {}
};

}  // namespace bosquet
