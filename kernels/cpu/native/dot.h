// Integer products of one block, for sixteen outputs and a few rows: the only code that differs by instruction set besides
// simd.h. Sums inside a block are exact, so all give the same bits.
#pragma once

#include "simd.h"
#include "weight.h"

namespace bosquet {
namespace {

// Sums of 16 outputs as 32-bit integers.
#if defined(__AVX512F__)

struct I16 {
    __m512i v;
};
inline I16 zero() { return {_mm512_setzero_si512()}; }
inline F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline I16 less(I16 x, int32_t y) { return {_mm512_sub_epi32(x.v, _mm512_set1_epi32(y))}; }
inline __m512i four(const int8_t* x) {
    int32_t bits;
    std::memcpy(&bits, x, 4);
    return _mm512_set1_epi32(bits);
}

// sums[r] = Σ over the block's 32 inputs of q·x[r], q in 0 … 15.
template <int R>
inline void dot_int4(const uint8_t* w, const int8_t* const* x, I16* sums) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int r = 0; r < R; r++) sums[r] = zero();
    for (int g = 0; g < 4; g++) {
        const __m512i both = _mm512_loadu_si512(w + g * 64);
        const __m512i first = _mm512_and_si512(both, low);
        const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        for (int r = 0; r < R; r++) {
            sums[r].v = _mm512_dpbusd_epi32(sums[r].v, first, four(x[r] + g * 4));
            sums[r].v = _mm512_dpbusd_epi32(sums[r].v, second, four(x[r] + 16 + g * 4));
        }
    }
}

// The same over steps FROM … TO − 1 of four inputs each, q signed. The instruction wants q unsigned: 128 is added to it, and
// 128·Σx, which the instruction computes as well, taken away.
template <int R, int FROM, int TO>
inline void dot_int8(const uint8_t* w, const int8_t* const* x, I16* sums) {
    const __m512i offset = _mm512_set1_epi8((char)0x80);
    __m512i extra[R];
    for (int r = 0; r < R; r++) {
        sums[r] = zero();
        extra[r] = _mm512_setzero_si512();
    }
    for (int g = FROM; g < TO; g++) {
        const __m512i q = _mm512_xor_si512(_mm512_loadu_si512(w + g * 64), offset);
        for (int r = 0; r < R; r++) {
            const __m512i inputs = four(x[r] + g * 4);
            sums[r].v = _mm512_dpbusd_epi32(sums[r].v, q, inputs);
            extra[r] = _mm512_dpbusd_epi32(extra[r], offset, inputs);
        }
    }
    for (int r = 0; r < R; r++) sums[r].v = _mm512_sub_epi32(sums[r].v, extra[r]);
}

#else

struct I16 {
    __m256i a, b;
};
inline I16 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I16 less(I16 x, int32_t y) {
    const __m256i all = _mm256_set1_epi32(y);
    return {_mm256_sub_epi32(x.a, all), _mm256_sub_epi32(x.b, all)};
}
inline __m256i four(const int8_t* x) {
    int32_t bits;
    std::memcpy(&bits, x, 4);
    return _mm256_set1_epi32(bits);
}
// Keeps the compiler from gathering products first and adding them later: sixteen registers do not hold that, and the sums
// would go through memory. A quarter of the time at four rows.
inline void in_order(I16& x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }
inline __m256i bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }

#if defined(__AVXVNNI__)
inline __m256i add_products(__m256i sums, __m256i q, __m256i x) { return _mm256_dpbusd_avx_epi32(sums, q, x); }
#else
// Pairs fit 16 bits when |q·x| ≤ 127·127: 2·127·127 = 32,258.
inline __m256i add_products(__m256i sums, __m256i q, __m256i x) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(q, x), _mm256_set1_epi16(1)));
}
#endif

// Steps 0 … 3 are in the low halves of the bytes, 4 … 7 in the high ones.
template <int R, bool HIGH>
inline void dot_nibbles(const uint8_t* w, const int8_t* const* x, I16* sums) {
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        __m256i a = bytes(w + g * 64), b = bytes(w + g * 64 + 32);
        if constexpr (HIGH) {
            a = _mm256_srli_epi16(a, 4);
            b = _mm256_srli_epi16(b, 4);
        }
        a = _mm256_and_si256(a, low);
        b = _mm256_and_si256(b, low);
        for (int r = 0; r < R; r++) {
            const __m256i inputs = four(x[r] + (HIGH ? 16 : 0) + g * 4);
#if defined(__AVXVNNI__)
            sums[r].a = add_products(sums[r].a, a, inputs);
            sums[r].b = add_products(sums[r].b, b, inputs);
#else
            // 16-bit sums: a lane adds 16 products of at most 15·127, which is 30,480.
            sums[r].a = _mm256_add_epi16(sums[r].a, _mm256_maddubs_epi16(a, inputs));
            sums[r].b = _mm256_add_epi16(sums[r].b, _mm256_maddubs_epi16(b, inputs));
#endif
            in_order(sums[r]);
        }
    }
}

template <int R>
inline void dot_int4(const uint8_t* w, const int8_t* const* x, I16* sums) {
    for (int r = 0; r < R; r++) sums[r] = zero();
    dot_nibbles<R, false>(w, x, sums);
    dot_nibbles<R, true>(w, x, sums);
#if !defined(__AVXVNNI__)
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < R; r++) sums[r] = {_mm256_madd_epi16(sums[r].a, ones), _mm256_madd_epi16(sums[r].b, ones)};
#endif
}

// The instruction wants q unsigned: |q| is multiplied by x with the sign of q.
template <int R, int FROM, int TO>
inline void dot_int8(const uint8_t* w, const int8_t* const* x, I16* sums) {
    for (int r = 0; r < R; r++) sums[r] = zero();
    for (int g = FROM; g < TO; g++) {
        const __m256i q_a = bytes(w + g * 64), q_b = bytes(w + g * 64 + 32);
        const __m256i size_a = _mm256_abs_epi8(q_a), size_b = _mm256_abs_epi8(q_b);
        for (int r = 0; r < R; r++) {
            const __m256i inputs = four(x[r] + g * 4);
            sums[r].a = add_products(sums[r].a, size_a, _mm256_sign_epi8(inputs, q_a));
            sums[r].b = add_products(sums[r].b, size_b, _mm256_sign_epi8(inputs, q_b));
            in_order(sums[r]);
        }
    }
}

#endif

}  // namespace
}  // namespace bosquet
