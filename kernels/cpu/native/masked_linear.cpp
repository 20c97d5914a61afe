// Products of which each row wants some outputs only: the output head under a grammar. Weights that no row wants are not read.

#include <algorithm>
#include <cmath>
#include <vector>

#include "pointwise.h"
#include "weight.h"

namespace bosquet {

namespace {

constexpr int64_t WORTH_WAKING = 1 << 19;  // bytes of weights, counted for each row: work as long as waking a thread

// Which outputs each row wants: sixteen bits a panel, one for each of its outputs. A row without a mask wants all.
struct Masks {
    const uint16_t* const* of;  // [count]
    int64_t count;
    uint16_t bits(int64_t row, int64_t panel) const { return of[row] ? of[row][panel] : 0xffff; }
};

// The panels that some row wants, and the others.
class Wanted {
public:
    std::vector<int32_t> some, none;

    void sort(const Masks& masks, int64_t panels) {
        any_.assign(panels, 0);
        for (int64_t row = 0; row < masks.count; row++)
            for (int64_t p = 0; p < panels; p++) any_[p] |= masks.bits(row, p);
        some.clear();
        none.clear();
        for (int64_t p = 0; p < panels; p++) (any_[p] ? some : none).push_back((int32_t)p);
    }

private:
    std::vector<uint16_t> any_;
};

// One panel for rows begin … end − 1: products where a row's bit is 1, −∞ where it is 0. Neighbours that want something of the
// panel are computed together.
void multiply_wanted(const Weight& weight, const Rows& rows, const Masks& masks, int64_t begin, int64_t end, int64_t panel,
                     float* out) {
    for (int64_t first = begin, row = begin; row <= end; row++) {
        if (row < end && masks.bits(row, panel)) continue;
        if (first < row) multiply(weight, rows, first, row, panel, STORE, out, weight.outs);
        first = row + 1;
    }
    const int64_t outs = std::min<int64_t>(PANEL, weight.outs - panel * PANEL);
    for (int64_t row = begin; row < end; row++) {
        const uint16_t bits = masks.bits(row, panel);
        float* to = out + row * weight.outs + panel * PANEL;
        if (bits == 0)
            store_some(to, set1(-INFINITY), outs);
        else if (bits != 0xffff)
            for (int64_t i = 0; i < outs; i++) to[i] = bits >> i & 1 ? to[i] : -INFINITY;
    }
}

// Shares `panels` out among the team, for all rows.
void multiply_wanted(Team& team, const Weight& weight, const Rows& rows, const Masks& masks,
                     const std::vector<int32_t>& panels, float* out) {
    const int64_t n = panels.size(), chunks = (masks.count + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    team.guided(n * chunks, largest_piece(n, chunks), [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; i++) {
            const int64_t begin = i / n * ROWS_TOGETHER, end = std::min(begin + ROWS_TOGETHER, masks.count);
            multiply_wanted(weight, rows, masks, begin, end, panels[i % n], out);
        }
    });
}

}  // namespace

}  // namespace bosquet

using namespace bosquet;

// As bosquet_linear, with −∞ for each output that a row's mask has no bit for. `masks` [count] point to ceil(outs / 32) words of
// 32 bits, or are null.
BOSQUET_EXPORT void bosquet_masked_linear(void* context, const void* weight, const float* x, int64_t count,
                                          const uint16_t* const* masks, float* out) {
    static thread_local RowsBuffer buffer;
    static thread_local Wanted sorted;
    const Weight& w = *(const Weight*)weight;
    const Rows rows = buffer.take(x, w.width, w.width, count);
    const Masks all{masks, count};
    Wanted& wanted = sorted;  // the caller's, whichever thread reads it below
    wanted.sort(all, w.panels);
    const auto job = [&](Team& team) {
        if (w.form.quantized())
            team.pieces(count, 8, [&](int64_t begin, int64_t end) { quantize(rows, w.width, begin, end); });
        multiply_wanted(team, w, rows, all, wanted.some, out);
        multiply_wanted(team, w, rows, all, wanted.none, out);
    };
    Pool& pool = ((Context*)context)->pool;
    if ((int64_t)(wanted.some.size() * w.panel_bytes()) * count < WORTH_WAKING) {
        Team alone(pool, 0, 1);
        job(alone);
    } else {
        pool.run(job);
    }
}
