// Sixteen floats at a time, for AVX2 (two registers) and AVX-512 (one). Knows nothing of what is computed.
//
// Every operation is lane by lane, and sums over lanes are taken in one fixed tree, so that code written with these gives
// the same bits on every instruction set. Compiled with -ffp-contract=off: a multiply-add is fused where it says so.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bosquet {
namespace {  // each instruction set is a translation unit of its own: nothing here may be shared between them

constexpr int LANES = 16;

#if defined(__AVX512F__)

struct F16 {
    __m512 v;
};
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 operator+(F16 x, F16 y) { return {_mm512_add_ps(x.v, y.v)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm512_div_ps(x.v, y.v)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }   // x·y + z
inline F16 fnma(F16 x, F16 y, F16 z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }  // z − x·y
inline F16 max(F16 x, F16 y) { return {_mm512_max_ps(x.v, y.v)}; }
inline F16 min(F16 x, F16 y) { return {_mm512_min_ps(x.v, y.v)}; }
inline F16 abs(F16 x) { return {_mm512_abs_ps(x.v)}; }
inline F16 round_even(F16 x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for whole n in −126 … 127
inline F16 power_of_two(F16 n) {
    __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 23))};
}
inline F16 load_bf16(const uint16_t* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store_bf16(uint16_t* p, F16 x) {  // to the nearest, ties to even; for numbers that are not NaN
    __m512i bits = _mm512_castps_si512(x.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}
inline F16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline F16 load_i8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
inline void store_i8(int8_t* p, F16 x) {  // rounded to the nearest, ties to even; for numbers within −128 … 127
    _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
inline bool any_above(F16 x, float y) { return _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(y), _CMP_GT_OQ) != 0; }
inline __m256 low_half(F16 x) { return _mm512_castps512_ps256(x.v); }
inline __m256 high_half(F16 x) {
    return _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(x.v), 1));
}

#else

struct F16 {
    __m256 a, b;
};
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 fnma(F16 x, F16 y, F16 z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 abs(F16 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F16 round_even(F16 x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline __m256 power_of_two_8(__m256 n) {
    __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
inline F16 power_of_two(F16 n) { return {power_of_two_8(n.a), power_of_two_8(n.b)}; }
inline __m256 load_bf16_8(const uint16_t* p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline F16 load_bf16(const uint16_t* p) { return {load_bf16_8(p), load_bf16_8(p + 8)}; }
inline __m256i bf16_bits(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_srli_epi32(bits, 16);
}
inline void store_bf16(uint16_t* p, F16 x) {  // to the nearest, ties to even; for numbers that are not NaN
    __m256i packed = _mm256_packus_epi32(bf16_bits(x.a), bf16_bits(x.b));
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
inline F16 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
}
inline F16 load_i8(const int8_t* p) {
    __m128i bytes = _mm_loadu_si128((const __m128i*)p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline void store_i8(int8_t* p, F16 x) {  // rounded to the nearest, ties to even; for numbers within −128 … 127
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i*)p, bytes);
}
inline bool any_above(F16 x, float y) {
    const __m256 bound = _mm256_set1_ps(y);
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, bound, _CMP_GT_OQ), _mm256_cmp_ps(x.b, bound, _CMP_GT_OQ))) != 0;
}
inline __m256 low_half(F16 x) { return x.a; }
inline __m256 high_half(F16 x) { return x.b; }

#endif

// The sum, and the largest, of all lanes: halves first, always in the same tree.
inline float sum(F16 x) {
    __m256 eight = _mm256_add_ps(low_half(x), high_half(x));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(F16 x) {
    __m256 eight = _mm256_max_ps(low_half(x), high_half(x));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// e^x for x ≤ 88; below −87.3 the result is that of −87.3, which is 1.2e−38. Within 2 units in the last place: x is
// split into n·ln 2 + r with |r| ≤ ln 2 / 2, and e^r is its Taylor series up to r^7.
inline F16 exp(F16 x) {
    x = max(x, set1(-87.3f));
    F16 n = round_even(x * set1(1.44269504f));
    F16 r = fnma(n, set1(0.693359375f), x);
    r = fnma(n, set1(-2.12194440e-4f), r);
    F16 p = set1(1.0f / 5040);
    p = fma(p, r, set1(1.0f / 720));
    p = fma(p, r, set1(1.0f / 120));
    p = fma(p, r, set1(1.0f / 24));
    p = fma(p, r, set1(1.0f / 6));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return p * power_of_two(n);
}

inline float bf16_to_float(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}
inline uint16_t float_to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace
}  // namespace bosquet
