// Where keys and values lie. Knows page and slot numbers; nothing of sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention.h"
#include "simd.h"

namespace bosquet {

constexpr int MAX_DIM = 256;

// The keys of a page are transposed, [d][16 slots], so that the scores of sixteen positions are computed lane by lane, with
// no sum across lanes. Its values are [16 slots][padded d]. Keys, values and, in int8, the scales of both, 16 floats each,
// of one page, layer and head are one *unit*; units lie as [page][layer][head], so a page that is never used takes no memory.
struct KvCache {
    int layers, kv_heads, pages, dim, padded;  // padded: dim rounded up to a multiple of LANES; what is added is zero
    KvType type;
    size_t element, values, key_scales, value_scales, unit_bytes;  // bytes; the middle three are offsets in a unit
    char* data;
    size_t mapped;

    char* unit(int64_t page, int layer, int head) const {
        return data + ((page * layers + layer) * kv_heads + head) * unit_bytes;
    }
};

// k and v [dim] of one head to a slot.
void write_slot(const KvCache& kv, int layer, int head, int64_t slot, const float* k, const float* v);

// One slot's column of keys, row of values and scales from a unit to another, or to another place in it.
void copy_slot(const KvCache& kv, const char* from, int from_slot, char* to, int to_slot);

namespace {

// The same pointer, of which the compiler knows nothing: what was read through another is read again rather than kept in
// registers. Of those AVX2 has sixteen; the loops of attention hold sums in twelve, and one sum out of a register halves
// their speed.
template <class P>
inline P* unknown(P* p) {
    asm volatile("" : "+r"(p));
    return p;
}

// How sixteen stored numbers become floats in lane order, times `factor`. `place` says where lane i lies among the sixteen:
// the order in memory is whatever the instruction set unpacks without moving anything between lanes.
template <KvType T>
struct Stored;

template <>
struct Stored<KV_FLOAT32> {
    using Element = float;
    static constexpr float factor = 1;
    static constexpr int place(int lane) { return lane; }
    static F16 read(const float* p) { return load(p); }
    static void write(float* p, F16 x) { store(p, x); }
};

template <>
struct Stored<KV_BFLOAT16> {
    using Element = uint16_t;
    static constexpr float factor = 1;
#if defined(__AVX512F__)
    static constexpr int place(int lane) { return lane; }
    static F16 read(const uint16_t* p) { return load_bf16(p); }
    static void write(uint16_t* p, F16 x) { store_bf16(p, x); }
#else
    // Lanes 0 … 7 in the low halves of eight words, 8 … 15 in the high halves.
    static constexpr int place(int lane) { return lane < 8 ? 2 * lane : 2 * (lane - 8) + 1; }
    static F16 read(const uint16_t* p) {
        __m256i both = _mm256_loadu_si256((const __m256i*)p), high = _mm256_set1_epi32((int)0xffff0000);
        return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)), _mm256_castsi256_ps(_mm256_and_si256(both, high))};
    }
    static void write(uint16_t* p, F16 x) {
        _mm256_storeu_si256((__m256i*)p, _mm256_or_si256(bf16_bits(x.a), _mm256_slli_epi32(bf16_bits(x.b), 16)));
    }
#endif
};

// Bytes 0 … 7 and 8 … 15 of sixteen to the tops of eight words each; 128 gives zero.
alignas(32) constexpr uint8_t SPREAD[64] = {
    128, 128, 128, 0,  128, 128, 128, 1,  128, 128, 128, 2,  128, 128, 128, 3,   //
    128, 128, 128, 4,  128, 128, 128, 5,  128, 128, 128, 6,  128, 128, 128, 7,   //
    128, 128, 128, 8,  128, 128, 128, 9,  128, 128, 128, 10, 128, 128, 128, 11,  //
    128, 128, 128, 12, 128, 128, 128, 13, 128, 128, 128, 14, 128, 128, 128, 15};

template <>
struct Stored<KV_INT8> {
    using Element = int8_t;
    static constexpr int place(int lane) { return lane; }
    static void write(int8_t* p, F16 x) { store_i8(p, x); }
#if defined(__AVX512F__)
    static constexpr float factor = 1;
    static F16 read(const int8_t* p) { return load_i8(p); }
#else
    // Bytes at the top of words, so 2^24 times their value: a power of two changes no digit.
    static constexpr float factor = 1 << 24;
    static F16 read(const int8_t* p) {
        const __m256i* index = (const __m256i*)unknown(SPREAD);
        __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p));
        return {_mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, _mm256_load_si256(index))),
                _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, _mm256_load_si256(index + 1)))};
    }
#endif
};

// The type as a constant: call(std::integral_constant<KvType, type>).
template <class Call>
inline void with_type(KvType type, Call call) {
    if (type == KV_INT8) return call(std::integral_constant<KvType, KV_INT8>());
    if (type == KV_BFLOAT16) return call(std::integral_constant<KvType, KV_BFLOAT16>());
    return call(std::integral_constant<KvType, KV_FLOAT32>());
}

}  // namespace
}  // namespace bosquet
