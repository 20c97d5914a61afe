// Norms and activations of single rows. A row's result depends on that row alone.
#pragma once

#include "simd.h"

namespace bosquet {
namespace {

// The `count` floats at p, count < 16, and zeros.
inline F16 load_some(const float* p, int64_t count) {
    alignas(64) float lanes[LANES] = {};
    std::memcpy(lanes, p, count * 4);
    return load(lanes);
}

inline void store_some(float* to, F16 x, int64_t count) {
    if (count >= LANES) return store(to, x);
    alignas(64) float lanes[LANES];
    store(lanes, x);
    std::memcpy(to, lanes, count * 4);
}

// Calls body(i, lanes) for every run of sixteen in 0 … width − 1; the last may hold fewer.
template <class Body>
inline void runs(int64_t width, Body body) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) body(i, (int64_t)LANES);
    if (i < width) body(i, width - i);
}

inline F16 load_run(const float* p, int64_t count) { return count == LANES ? load(p) : load_some(p, count); }

// out = x / √(mean(x²) + eps) · weight; `out` may be `x`.
inline void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* out) {
    F16 squares = set1(0.0f);
    runs(width, [&](int64_t i, int64_t n) {
        const F16 part = load_run(x + i, n);
        squares = fma(part, part, squares);
    });
    const F16 scale = set1(1.0f / __builtin_sqrtf(sum(squares) / (float)width + eps));
    runs(width, [&](int64_t i, int64_t n) {
        store_some(out + i, load_run(x + i, n) * scale * load_run(weight + i, n), n);
    });
}

// to += x
inline void add(const float* x, int64_t width, float* to) {
    runs(width, [&](int64_t i, int64_t n) { store_some(to + i, load_run(to + i, n) + load_run(x + i, n), n); });
}

// e^−x overflows no earlier than this; the quotient is then zero as it should be.
inline F16 sigmoid_of_minus(F16 x) { return set1(1.0f) / (set1(1.0f) + exp(min(x, set1(88.0f)))); }

inline F16 silu(F16 x) { return x * sigmoid_of_minus(set1(0.0f) - x); }

// gelu by its approximation with tanh: x·σ(2u), u = √(2/π)·(x + 0.044715·x³).
inline F16 gelu(F16 x) {
    const F16 u = set1(0.7978845608f) * fma(x * x * x, set1(0.044715f), x);
    return x * sigmoid_of_minus(set1(0.0f) - (u + u));
}

}  // namespace
}  // namespace bosquet
