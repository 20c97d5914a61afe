// Some pairs of a query and a head against one block of 64 positions. Knows pages of one key head; no plan.
//
// Nothing here depends on which pairs stand beside one another, nor on which instruction set runs: a score is summed over d in
// order, a lane's sum of weights and a value's weighted sum over positions in order, and what a pair does not see adds nothing.
#pragma once

#include <algorithm>

#include "attention_plan.h"
#include "kv.h"

namespace bosquet {
namespace {

constexpr float HIDDEN = -1e30f;  // the score of what is not seen, and the maximum of nothing
constexpr int GROUP = 6;          // pairs whose sums are in registers at once

// Pages, or chunks of sixteen values, that M pairs take at once: enough independent sums to hide the latency of one.
#if defined(__AVX512F__)
constexpr int at_once(int) { return 4; }
#else
constexpr int at_once(int pairs) { return pairs == 1 ? 4 : pairs <= 3 ? 2 : 1; }
#endif

// Lanes begin … end − 1 of x, `other` in the rest; either bound may lie outside.
inline F16 between(F16 x, int begin, int end, float other) {
    begin = std::clamp(begin, 0, LANES), end = std::clamp(end, 0, LANES);
#if defined(__AVX512F__)
    __mmask16 kept = (__mmask16)(((1u << end) - 1) & ~((1u << begin) - 1));
    return {_mm512_mask_blend_ps(kept, _mm512_set1_ps(other), x.v)};
#else
    __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), second = _mm256_add_epi32(first, _mm256_set1_epi32(8));
    auto blend = [&](__m256 y, __m256i lane) {
        __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane);
        __m256i kept = _mm256_andnot_si256(low, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
        return _mm256_blendv_ps(_mm256_set1_ps(other), y, _mm256_castsi256_ps(kept));
    };
    return {blend(x.a, first), blend(x.b, second)};
#endif
}

// The state of a tile in one thread: over the span so far, maximum, sum of weights lane by lane, weighted sum of values.
struct Pairs {
    int count, dim, padded;
    float *q;       // scaled; of each group [dim][pairs of the group], one group after the other
    float *scores;  // [count][BLOCK], then the weights
    float *sum;     // [count][LANES]
    float *values;  // [count][padded]
    float most[MAX_PAIRS], kept[2 * LANES];  // the maximum, and by what a new one scales what was there
    int low[MAX_PAIRS], high[MAX_PAIRS];     // positions seen
    int least_low, most_low, least_high, most_high;

    int groups() const { return (count + GROUP - 1) / GROUP; }
    int group(int i) const { return count * i / groups(); }

    void clear() {
        std::fill_n(most, count, HIDDEN);
        std::fill_n(sum, count * LANES, 0.0f);
        std::fill_n(values, count * padded, 0.0f);
    }
};

// The block at positions base …: its pages from first_page to end_page − 1 hold what some pair sees, at begin … end − 1.
struct Block {
    const char* unit[BLOCK_PAGES];
    const char* ahead[BLOCK_PAGES];  // those of the next block, fetched into the second cache: a tile fills the first
    int base, begin, end;
    bool partly;  // some pair does not see all of it

    int first_page() const { return begin / PAGE; }
    int end_page() const { return (end + PAGE - 1) / PAGE; }
};

template <KvType T, int M, int P>
inline void score_pages(const KvCache& kv, const Block& block, int page, const float* q, float* out, bool fetch) {
    using Element = typename Stored<T>::Element;
    const Element* key[P];
    const char* next[P];
    F16 total[M][P];
#pragma GCC unroll 8
    for (int j = 0; j < P; j++) {
        key[j] = (const Element*)block.unit[page + j];
        next[j] = block.ahead[page + j];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) total[m][j] = set1(0);
    }
    for (int k = 0; k < kv.dim; k++) {
#pragma GCC unroll 8
        for (int j = 0; j < P; j++) {
            F16 x = Stored<T>::read(key[j] + k * PAGE);
            if (fetch) _mm_prefetch(next[j] + k * PAGE * sizeof(Element), _MM_HINT_T1);
            const float* y = unknown(q + k * M);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) total[m][j] = fma(x, set1(y[m]), total[m][j]);
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < P; j++) {
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            if (T == KV_INT8) {
                const float* scale = (const float*)(block.unit[page + j] + kv.key_scales);
                total[m][j] = total[m][j] * load(scale) * set1(1 / Stored<T>::factor);
            }
            store(out + m * BLOCK + (page + j) * PAGE, total[m][j]);
        }
    }
}

template <KvType T, int M>
void score(const KvCache& kv, const Block& block, const float* q, float* out, bool fetch) {
    constexpr int P = at_once(M);
    int page = block.first_page(), end = block.end_page();
    for (; page + P <= end; page += P) score_pages<T, M, P>(kv, block, page, q, out, fetch);
    for (; page < end; page++) score_pages<T, M, 1>(kv, block, page, q, out, fetch);
}

// Scores to weights e^(score − maximum); in int8 the weights take the values' scales.
template <KvType T>
void weigh(const KvCache& kv, const Block& block, Pairs& pairs) {
    int first = block.first_page(), end = block.end_page();
    for (int i = 0; i < pairs.count; i++) {
        float* score = pairs.scores + i * BLOCK;
        F16 top = set1(HIDDEN);
        for (int j = first; j < end; j++) {
            F16 x = load(score + j * PAGE);
            if (block.partly) {
                int at = block.base + j * PAGE;
                x = between(x, pairs.low[i] - at, pairs.high[i] - at, HIDDEN);
                store(score + j * PAGE, x);
            }
            top = max(top, x);
        }
        float most = std::max(pairs.most[i], largest(top));
        pairs.kept[i] = pairs.most[i] - most;
        pairs.most[i] = most;
    }
    for (int i = 0; i < pairs.count; i += LANES) store(pairs.kept + i, exp(load(pairs.kept + i)));
    for (int i = 0; i < pairs.count; i++) {
        float* score = pairs.scores + i * BLOCK;
        F16 most = set1(pairs.most[i]), total = load(pairs.sum + i * LANES) * set1(pairs.kept[i]);
        for (int j = first; j < end; j++) {
            F16 weight = exp(load(score + j * PAGE) - most);
            int at = block.base + j * PAGE;
            if (block.partly) weight = between(weight, pairs.low[i] - at, pairs.high[i] - at, 0.0f);
            total = total + weight;
            if (T == KV_INT8) weight = weight * load((const float*)(block.unit[j] + kv.value_scales));
            store(score + j * PAGE, weight);
        }
        store(pairs.sum + i * LANES, total);
    }
}

template <KvType T, int M, int C>
inline void gather_chunks(const KvCache& kv, const Block& block, int chunk, const float* weights, const float* kept,
                          float* values, bool fetch) {
    using Element = typename Stored<T>::Element;
    const int padded = kv.padded;
    F16 total[M][C];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
            total[m][c] = load(values + m * padded + (chunk + c) * LANES) * set1(kept[m]);
    }
    for (int at = block.begin; at < block.end;) {
        int page = at / PAGE, end = std::min(block.end, (page + 1) * PAGE);
        size_t offset = kv.values + ((at % PAGE) * padded + chunk * LANES) * sizeof(Element);
        const char *row = block.unit[page] + offset, *next = block.ahead[page] + offset;
        for (; at < end; at++, row += padded * sizeof(Element), next += padded * sizeof(Element)) {
            if (fetch) _mm_prefetch(next, _MM_HINT_T1);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) {
                F16 x = Stored<T>::read((const Element*)row + c * LANES);
                const float* y = unknown(weights + at);
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) total[m][c] = fma(x, set1(y[m * BLOCK]), total[m][c]);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store(values + m * padded + (chunk + c) * LANES, total[m][c]);
    }
}

template <KvType T, int M>
void gather(const KvCache& kv, const Block& block, const float* weights, const float* kept, float* values, bool fetch) {
    constexpr int C = at_once(M);
    int chunk = 0, end = kv.padded / LANES;
    for (; chunk + C <= end; chunk += C) gather_chunks<T, M, C>(kv, block, chunk, weights, kept, values, fetch);
    for (; chunk < end; chunk++) gather_chunks<T, M, 1>(kv, block, chunk, weights, kept, values, fetch);
}

// call(std::integral_constant<int, n>) for n in 1 … GROUP
template <class Call>
inline void with_pairs(int n, Call call) {
    static_assert(GROUP == 6);
    switch (n) {
        case 1: return call(std::integral_constant<int, 1>());
        case 2: return call(std::integral_constant<int, 2>());
        case 3: return call(std::integral_constant<int, 3>());
        case 4: return call(std::integral_constant<int, 4>());
        case 5: return call(std::integral_constant<int, 5>());
        default: return call(std::integral_constant<int, 6>());
    }
}

// Takes the block into the state of all pairs.
template <KvType T>
void take_block(const KvCache& kv, const Block& block, Pairs& pairs) {
    for (int i = 0; i < pairs.groups(); i++) {
        int first = pairs.group(i);
        with_pairs(pairs.group(i + 1) - first, [&](auto m) {
            score<T, m.value>(kv, block, pairs.q + first * kv.dim, pairs.scores + first * BLOCK, i == 0);
        });
    }
    weigh<T>(kv, block, pairs);
    for (int i = 0; i < pairs.groups(); i++) {
        int first = pairs.group(i);
        with_pairs(pairs.group(i + 1) - first, [&](auto m) {
            gather<T, m.value>(kv, block, pairs.scores + first * BLOCK, pairs.kept + first,
                               pairs.values + first * kv.padded, i == 0);
        });
    }
}

}  // namespace
}  // namespace bosquet
