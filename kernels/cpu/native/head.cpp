// The output head: products of which a row may want some outputs only, as a grammar has it, and the largest of each row. Weights
// that no row wants are not read. A token's logits lie in the caches of whoever computed them, and to go through them once more
// costs a row a third of a millisecond; here it costs next to nothing.

#include <algorithm>
#include <cmath>
#include <vector>

#include "pointwise.h"
#include "simd.h"
#include "weight.h"

namespace bosquet {

namespace {

constexpr int64_t WORTH_WAKING = 1 << 19;  // bytes of weights, counted for each row: work as long as waking a thread

// Which outputs each row wants: sixteen bits a panel, one for each of its outputs. A row without a mask wants all.
struct Masks {
    const uint16_t* const* of;  // [count], or null: there is no mask
    int64_t count;
    uint16_t bits(int64_t row, int64_t panel) const { return of && of[row] ? of[row][panel] : 0xffff; }
};

// The largest output of a row, the first of equal ones.
struct Best {
    float value = -INFINITY;
    int64_t at = 0;
    void see(const float* outputs, int64_t n, int64_t first) {
        if (n == LANES && !any_above(load(outputs), value)) return;
        for (int64_t i = 0; i < n; i++)
            if (outputs[i] > value) value = outputs[i], at = first + i;
    }
    void see(const Best& other) {
        if (other.value > value || (other.value == value && other.at < at)) *this = other;
    }
};

// For each member what it saw of each row, as its panels came in rising order.
class Bests {
public:
    void clear(int64_t members, int64_t rows) {
        stride_ = (rows + 3) / 4 * 4;  // a cache line is one member's
        of_.assign(members * stride_, Best());
    }
    Best* of(int64_t member) { return of_.data() + member * stride_; }

private:
    std::vector<Best> of_;
    int64_t stride_ = 0;
};

// The panels that some row wants, and the others.
class Wanted {
public:
    std::vector<int32_t> some, none;

    void sort(const Masks& masks, int64_t panels) {
        any_.assign(panels, masks.of ? 0 : 0xffff);
        for (int64_t row = 0; masks.of && row < masks.count; row++)
            for (int64_t p = 0; p < panels; p++) any_[p] |= masks.bits(row, p);
        some.clear();
        none.clear();
        for (int64_t p = 0; p < panels; p++) (any_[p] ? some : none).push_back((int32_t)p);
    }

private:
    std::vector<uint16_t> any_;
};

// One panel for rows begin … end − 1: products where a row's bit is 1, −∞ where it is 0. Neighbours that want something of the
// panel are computed together. `best` [count] sees them.
void multiply_wanted(const Weight& weight, const Rows& rows, const Masks& masks, int64_t begin, int64_t end, int64_t panel,
                     float* out, Best* best) {
    for (int64_t first = begin, row = begin; row <= end; row++) {
        if (row < end && masks.bits(row, panel)) continue;
        if (first < row) multiply(weight, rows, first, row, panel, STORE, out, weight.outs);
        first = row + 1;
    }
    const int64_t outs = std::min<int64_t>(PANEL, weight.outs - panel * PANEL);
    for (int64_t row = begin; row < end; row++) {
        const uint16_t bits = masks.bits(row, panel);
        float* to = out + row * weight.outs + panel * PANEL;
        if (bits == 0) {
            store_some(to, set1(-INFINITY), outs);
            continue;
        }
        if (bits != 0xffff)
            for (int64_t i = 0; i < outs; i++) to[i] = bits >> i & 1 ? to[i] : -INFINITY;
        best[row].see(to, outs, panel * PANEL);
    }
}

// Shares `panels` out among the team, for all rows.
void multiply_wanted(Team& team, const Weight& weight, const Rows& rows, const Masks& masks,
                     const std::vector<int32_t>& panels, float* out, Best* best) {
    const int64_t n = panels.size(), chunks = (masks.count + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    team.guided(n * chunks, largest_piece(n, chunks), [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; i++) {
            const int64_t begin = i / n * ROWS_TOGETHER, end = std::min(begin + ROWS_TOGETHER, masks.count);
            multiply_wanted(weight, rows, masks, begin, end, panels[i % n], out, best);
        }
    });
}

}  // namespace

}  // namespace bosquet

using namespace bosquet;

// As bosquet_linear, with −∞ for each output that a row's mask has no bit for; best_at and best [count] are the largest output of
// each row, the first of equal ones, and its value. `masks` is null, or [count] pointers to ceil(outs / 32) words of 32 bits or
// null.
BOSQUET_EXPORT void bosquet_head(void* context, const void* weight, const float* x, int64_t count,
                                 const uint16_t* const* masks, float* out, int64_t* best_at, float* best) {
    static thread_local RowsBuffer buffer;
    static thread_local Wanted sorted;
    static thread_local Bests seen;
    const Weight& w = *(const Weight*)weight;
    const Rows rows = buffer.take(x, w.width, w.width, count);
    const Masks all{masks, count};
    Wanted& wanted = sorted;  // the caller's, whichever thread reads it below
    Bests& bests = seen;
    Pool& pool = ((Context*)context)->pool;
    wanted.sort(all, w.panels);
    bests.clear(pool.size(), count);
    const auto job = [&](Team& team) {
        if (w.form.quantized())
            team.pieces(count, 8, [&](int64_t begin, int64_t end) { quantize(rows, w.width, begin, end); });
        multiply_wanted(team, w, rows, all, wanted.some, out, bests.of(team.index));
        multiply_wanted(team, w, rows, all, wanted.none, out, bests.of(team.index));
    };
    if ((int64_t)(wanted.some.size() * w.panel_bytes()) * count < WORTH_WAKING) {
        Team alone(pool, 0, 1);
        job(alone);
    } else {
        pool.run(job);
    }
    for (int64_t row = 0; row < count; row++) {
        Best most = bests.of(0)[row];
        for (int member = 1; member < pool.size(); member++) most.see(bests.of(member)[row]);
        best_at[row] = most.at, best[row] = most.value;
    }
}
