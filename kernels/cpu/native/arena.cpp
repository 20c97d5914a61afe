#include "arena.h"

#include <sys/mman.h>

#include <algorithm>

namespace bosquet {

namespace {

constexpr size_t LARGE = 2 << 20, LINE = 64;
constexpr size_t SLAB = 16 * LARGE;  // of addresses: what is not used is not backed by memory

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

}  // namespace

class Slab {
public:
    explicit Slab(size_t bytes) : size_(bytes), mapped_(bytes + LARGE) {
        base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base_ == MAP_FAILED) return;
        first_ = (uint8_t*)round_up((size_t)base_, LARGE);
        madvise(first_, size_, MADV_HUGEPAGE);  // a refusal costs speed only
    }
    ~Slab() {
        if (base_ != MAP_FAILED) munmap(base_, mapped_);
    }
    Slab(const Slab&) = delete;

    uint8_t* take(size_t bytes) {
        if (!first_ || bytes > size_ - used_) return nullptr;
        uint8_t* taken = first_ + used_;
        used_ += bytes;
        return taken;
    }

private:
    void* base_;
    uint8_t* first_ = nullptr;
    size_t size_, mapped_, used_ = 0;
};

std::shared_ptr<uint8_t> Arena::take(size_t bytes) {
    bytes = round_up(bytes, LINE);
    std::shared_ptr<Slab> slab = open_.lock();
    uint8_t* taken = slab ? slab->take(bytes) : nullptr;
    if (!taken) {
        slab = std::make_shared<Slab>(std::max(round_up(bytes, LARGE), SLAB));
        taken = slab->take(bytes);
        if (bytes <= SLAB) open_ = slab;
    }
    return taken ? std::shared_ptr<uint8_t>(slab, taken) : nullptr;
}

}  // namespace bosquet
