// Memory for packed weights: side by side in large pages. A layer's weights are smaller than one, and a pass over many small
// pages waits for their addresses: a twelfth of the time of a decode step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bosquet {

class Slab;

class Arena {
public:
    // `bytes` on a cache line's boundary; the slab that they lie in lives as long as one who holds such memory. Null: none left.
    std::shared_ptr<uint8_t> take(size_t bytes);

private:
    std::weak_ptr<Slab> open_;  // the one with room
};

}  // namespace bosquet
