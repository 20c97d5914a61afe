// Weights packed for the kernels of linear.cpp, and activations prepared for them.
//
// A weight [outs, width] is cut into panels of 16 outputs and blocks of 32 inputs, zero-padded. A panel is contiguous, so one
// thread streams it. Within a block of a quantized weight, step g holds inputs 4g … 4g + 3 of all 16 outputs, output by output,
// in 64 bytes: what one multiply instruction takes. Four-bit weights hold step g in the low and step g + 4 in the high half of a
// byte. After the numbers of a block come its scales, and its minima if it has any, each for 16 outputs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "context.h"

namespace bosquet {

constexpr int PANEL = 16;
constexpr int BLOCK = 32;

enum Storage : int { FLOAT32, FLOAT16, BFLOAT16, INT4, INT8 };

struct Form {
    Storage storage;
    bool minima;    // value = scale·q + minimum; without: scale·(q − 8) for INT4, scale·q for INT8
    bool wide;      // scales and minima in float32, else float16
    bool halves;    // a scale for each 16 inputs, not 32
    bool quantized() const { return storage == INT4 || storage == INT8; }
    size_t numbers() const {  // bytes of a block's numbers
        constexpr size_t bytes[] = {4, 2, 2, 0, 1};
        return storage == INT4 ? PANEL * BLOCK / 2 : PANEL * BLOCK * bytes[storage];
    }
    size_t block_bytes() const {
        size_t each = PANEL * (wide ? 4 : 2);
        return numbers() + (quantized() ? each * ((halves ? 2 : 1) + (minima ? 1 : 0)) : 0);
    }
};

struct Weight {
    Form form;
    int64_t outs, width, panels, blocks;
    std::shared_ptr<uint8_t> data;
    float* bias;  // [panels·16], or null
    size_t panel_bytes() const { return form.block_bytes() * blocks; }
    size_t bytes() const { return panel_bytes() * panels; }
    const uint8_t* panel(int64_t i) const { return data.get() + i * panel_bytes(); }
};

// Rows of activations. Quantized by blocks of 32: x ≈ d·q with |q| ≤ 127.
struct Rows {
    const float* x;      // [rows] of `stride` floats
    int64_t stride;
    int8_t* q;           // [rows][blocks·32]
    float* d;            // [rows][blocks]
    int32_t* total;      // [rows][blocks]: sum of q
    float* mass;         // [rows][blocks]: d·total
    int64_t blocks;
};

// Room for the quantized form of rows.
class RowsBuffer {
public:
    Rows take(const float* x, int64_t stride, int64_t width, int64_t count) {
        const int64_t blocks = (width + BLOCK - 1) / BLOCK, all = blocks * count;
        return {x, stride, q_.take(all * BLOCK), d_.take(all), total_.take(all), mass_.take(all), blocks};
    }

private:
    Buffer<int8_t> q_;
    Buffer<float> d_, mass_;
    Buffer<int32_t> total_;
};

constexpr int64_t ROWS_TOGETHER = 32;  // rows that one piece of work covers: their activations stay in the first cache

// Panels in one piece of work. Those of few rows are a matter of microseconds; those of many would hold up a member that waits.
inline int64_t largest_piece(int64_t panels, int64_t chunks) { return chunks == 1 ? panels : 8; }

// Quantizes rows begin … end − 1, each of `width` floats.
void quantize(const Rows& rows, int64_t width, int64_t begin, int64_t end);

// What becomes of an output, besides being stored at out[row·stride + column].
enum After : int { STORE, SILU_MUL, GELU_MUL };

// For rows begin … end − 1 and one panel: out = x·Wᵀ + bias. With SILU_MUL or GELU_MUL the weight is [2·F, width] with F a
// multiple of 16; panel i < F / 16 gives act(gate)·up.
void multiply(const Weight& weight, const Rows& rows, int64_t begin, int64_t end, int64_t panel, After after, float* out,
              int64_t stride);

// All rows and panels, shared by the team, of rows that have been quantized if the weight needs it. Done when it returns.
void linear(Team& team, const Weight& weight, const Rows& rows, int64_t count, After after, float* out, int64_t stride);

// Row `index` of the weight as floats [width], exactly as the kernels see it.
void unpack_row(const Weight& weight, int64_t index, float* out);

}  // namespace bosquet
