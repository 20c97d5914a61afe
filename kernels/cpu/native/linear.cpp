// Products of activations and packed weights. Each output is accumulated over the inputs in one order, block by block, whatever
// the number of rows, so a row's result does not depend on the rows beside it.

#include "weight.h"

#include <algorithm>
#include <type_traits>

#include "dot.h"
#include "pointwise.h"
#include "simd.h"

namespace bosquet {

namespace {

template <bool WIDE>
F16 load_scales(const uint8_t* p) {
    if constexpr (WIDE) return load((const float*)p);
    return load_f16((const uint16_t*)p);
}

// What to fetch from memory while a tile is computed: `bytes` from `from`, a little at each block.
struct Ahead {
    const uint8_t* from;
    int64_t bytes;
    inline void fetch() {
        for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch((const char*)from + i, _MM_HINT_T0);
        from += bytes;
    }
};

// acc[r] += Σ over all inputs, for R rows from `row` and one panel of a quantized weight.
template <Storage STORAGE, bool MINIMA, bool WIDE, bool HALVES>
struct Quantized {
    static constexpr int TILE = 4;
    static constexpr Form form{STORAGE, MINIMA, WIDE, HALVES};

    template <int R>
    static void run(const Weight& weight, const Rows& rows, int64_t row, const uint8_t* w, Ahead ahead, F16* acc) {
        const int8_t* x[R];
        for (int r = 0; r < R; r++) x[r] = rows.q + (row + r) * rows.blocks * BLOCK;
        const float* d = rows.d + row * rows.blocks;
        [[maybe_unused]] const int32_t* total = rows.total + row * rows.blocks;
        [[maybe_unused]] const float* mass = rows.mass + row * rows.blocks;
        constexpr int step = PANEL * (WIDE ? 4 : 2);
        for (int64_t b = 0; b < weight.blocks; b++) {
            ahead.fetch();
            const uint8_t* scales = w + form.numbers();
            I16 sums[R];
            if constexpr (STORAGE == INT4) {
                dot_int4<R>(w, x, sums);
                if constexpr (!MINIMA)
                    for (int r = 0; r < R; r++) sums[r] = less(sums[r], 8 * total[r * rows.blocks + b]);
                add<R>(sums, load_scales<WIDE>(scales), d + b, rows.blocks, acc);
            } else if constexpr (HALVES) {
                dot_int8<R, 0, 4>(w, x, sums);
                add<R>(sums, load_scales<WIDE>(scales), d + b, rows.blocks, acc);
                dot_int8<R, 4, 8>(w, x, sums);
                scales += step;
                add<R>(sums, load_scales<WIDE>(scales), d + b, rows.blocks, acc);
            } else {
                dot_int8<R, 0, 8>(w, x, sums);
                add<R>(sums, load_scales<WIDE>(scales), d + b, rows.blocks, acc);
            }
            if constexpr (MINIMA) {
                const F16 least = load_scales<WIDE>(scales + step);
                for (int r = 0; r < R; r++) acc[r] = fma(least, set1(mass[r * rows.blocks + b]), acc[r]);
            }
            for (int r = 0; r < R; r++) x[r] += BLOCK;
            w += form.block_bytes();
        }
    }

    template <int R>
    static void add(const I16* sums, F16 scales, const float* d, int64_t stride, F16* acc) {
        for (int r = 0; r < R; r++) acc[r] = fma(to_float(sums[r]) * set1(d[r * stride]), scales, acc[r]);
    }
};

// The same for a weight of floats.
template <Storage STORAGE>
struct Plain {
    static constexpr int TILE = 6;

    static F16 weights(const uint8_t* w) {
        if constexpr (STORAGE == FLOAT32) return load((const float*)w);
        if constexpr (STORAGE == BFLOAT16) return load_bf16((const uint16_t*)w);
        return load_f16((const uint16_t*)w);
    }

    template <int R>
    static void run(const Weight& weight, const Rows& rows, int64_t row, const uint8_t* w, Ahead ahead, F16* acc) {
        constexpr int step = PANEL * (STORAGE == FLOAT32 ? 4 : 2);
        const float* x[R];
        for (int r = 0; r < R; r++) x[r] = rows.x + (row + r) * rows.stride;
        F16 sums[R];
        for (int r = 0; r < R; r++) sums[r] = acc[r];
        for (int64_t k = 0; k < weight.width; k++, w += step) {
            if (k % BLOCK == 0) ahead.fetch();
            const F16 column = weights(w);
            for (int r = 0; r < R; r++) sums[r] = fma(set1(x[r][k]), column, sums[r]);
        }
        for (int r = 0; r < R; r++) acc[r] = sums[r];
    }
};

constexpr int64_t DISTANCE = 1024;  // bytes ahead of a panel that is read only once: what memory needs to answer in time

// The first of `tiles` tiles reads the panel from memory, the others from the first cache: they fetch the next panel.
Ahead ahead_of(const Weight& weight, int64_t panel, int64_t tile, int64_t tiles) {
    const int64_t block = weight.form.block_bytes();
    if (tiles == 1) return {weight.panel(panel) + DISTANCE, block};
    const int64_t share = (block / tiles + 63) / 64 * 64;
    return {weight.panel(panel + 1) + tile * share * weight.blocks, share};
}

template <class Kind, int R>
void tile(const Weight& weight, const Rows& rows, int64_t row, int64_t panel, int64_t at, int64_t tiles, After after,
          float* out, int64_t stride) {
    F16 acc[R], second[R];
    const float* bias = weight.bias;
    for (int r = 0; r < R; r++) acc[r] = bias ? load(bias + panel * PANEL) : set1(0.0f);
    Kind::template run<R>(weight, rows, row, weight.panel(panel), ahead_of(weight, panel, at, tiles), acc);
    int64_t outs = weight.outs;
    if (after != STORE) {
        outs /= 2;
        const int64_t up = panel + outs / PANEL;
        for (int r = 0; r < R; r++) second[r] = bias ? load(bias + up * PANEL) : set1(0.0f);
        Kind::template run<R>(weight, rows, row, weight.panel(up), ahead_of(weight, up, at, tiles), second);
        for (int r = 0; r < R; r++) acc[r] = (after == SILU_MUL ? silu(acc[r]) : gelu(acc[r])) * second[r];
    }
    for (int r = 0; r < R; r++) store_some(out + (row + r) * stride + panel * PANEL, acc[r], outs - panel * PANEL);
}

template <class Kind>
void rows_of(const Weight& weight, const Rows& rows, int64_t row, int64_t end, int64_t panel, After after, float* out,
             int64_t stride) {
    const int64_t tiles = (end - row + Kind::TILE - 1) / Kind::TILE;
    int64_t at = 0;
    for (; row + Kind::TILE <= end; row += Kind::TILE)
        tile<Kind, Kind::TILE>(weight, rows, row, panel, at++, tiles, after, out, stride);
    switch (end - row) {
        case 1: return tile<Kind, 1>(weight, rows, row, panel, at, tiles, after, out, stride);
        case 2: return tile<Kind, 2>(weight, rows, row, panel, at, tiles, after, out, stride);
        case 3: return tile<Kind, 3>(weight, rows, row, panel, at, tiles, after, out, stride);
        case 4: return tile<Kind, 4>(weight, rows, row, panel, at, tiles, after, out, stride);
        case 5: return tile<Kind, 5>(weight, rows, row, panel, at, tiles, after, out, stride);
    }
}

}  // namespace

void quantize(const Rows& rows, int64_t width, int64_t begin, int64_t end) {
    alignas(64) float padded[BLOCK];
    for (int64_t row = begin; row < end; row++) {
        for (int64_t b = 0; b < rows.blocks; b++) {
            const float* x = rows.x + row * rows.stride + b * BLOCK;
            if (width - b * BLOCK < BLOCK) {
                std::memset(padded, 0, sizeof padded);
                std::memcpy(padded, x, (width - b * BLOCK) * 4);
                x = padded;
            }
            const F16 first = load(x), second = load(x + LANES);
            const float most = largest(max(abs(first), abs(second)));
            const int64_t at = row * rows.blocks + b;
            const float scale = most > 0 ? 127.0f / most : 0.0f;
            const F16 q1 = round_even(first * set1(scale)), q2 = round_even(second * set1(scale));
            store_i8(rows.q + at * BLOCK, q1);
            store_i8(rows.q + at * BLOCK + LANES, q2);
            rows.d[at] = most / 127.0f;
            const float total = sum(q1 + q2);  // whole numbers below 2^24: exact
            rows.total[at] = (int32_t)total;
            rows.mass[at] = rows.d[at] * total;
        }
    }
}

void multiply(const Weight& weight, const Rows& rows, int64_t begin, int64_t end, int64_t panel, After after, float* out,
              int64_t stride) {
    const Form& form = weight.form;
    const auto run = [&](auto kind) {
        rows_of<decltype(kind)>(weight, rows, begin, end, panel, after, out, stride);
    };
    switch (form.storage) {
        case FLOAT32: return run(Plain<FLOAT32>());
        case FLOAT16: return run(Plain<FLOAT16>());
        case BFLOAT16: return run(Plain<BFLOAT16>());
        case INT4:
            if (!form.minima) return run(Quantized<INT4, false, false, false>());
            if (form.wide) return run(Quantized<INT4, true, true, false>());
            return run(Quantized<INT4, true, false, false>());
        case INT8:
            if (form.halves) return run(Quantized<INT8, false, true, true>());
            if (!form.minima) return run(Quantized<INT8, false, false, false>());
            if (form.wide) return run(Quantized<INT8, true, true, false>());
            return run(Quantized<INT8, true, false, false>());
    }
}

void linear(Team& team, const Weight& weight, const Rows& rows, int64_t count, After after, float* out, int64_t stride) {
    const int64_t panels = after == STORE ? weight.panels : weight.outs / 2 / PANEL;
    const int64_t chunks = (count + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    team.guided(panels * chunks, largest_piece(panels, chunks), [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; i++) {
            const int64_t begin = i / panels * ROWS_TOGETHER;
            multiply(weight, rows, begin, std::min(begin + ROWS_TOGETHER, count), i % panels, after, out, stride);
        }
    });
}

}  // namespace bosquet

using namespace bosquet;

// out [count, outs] (or [count, outs / 2] after SILU_MUL and GELU_MUL) = x [count, width] · weightᵀ + bias.
BOSQUET_EXPORT void bosquet_linear(void* context, const void* weight, const float* x, int64_t count, int after, float* out) {
    static thread_local RowsBuffer buffer;
    const Weight& w = *(const Weight*)weight;
    const Rows rows = buffer.take(x, w.width, w.width, count);
    const int64_t outs = after == STORE ? w.outs : w.outs / 2;
    ((Context*)context)->pool.run([&](Team& team) {
        if (w.form.quantized())
            team.pieces(count, 8, [&](int64_t begin, int64_t end) { quantize(rows, w.width, begin, end); });
        linear(team, w, rows, count, (After)after, out, outs);
    });
}
