// Attention over pages, by the items of a plan, and the merging of partial results.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attention_tile.h"

namespace bosquet {

namespace {

// Results over some spans, of one pair or more: the sum of e^(score − most), and that of the values so weighted.
struct Results {
    float most[2 * LANES], sum[2 * LANES];
    float* values;  // [count][padded]
    int count, padded;

    void clear() {
        std::fill_n(most, count, HIDDEN);
        std::fill_n(sum, count, 0.0f);
        std::fill_n(values, count * padded, 0.0f);
    }

    // Takes in what was found over later positions.
    void add(const float* other_most, const float* other_sum, const float* other) {
        alignas(64) float mine[2 * LANES] = {}, theirs[2 * LANES] = {};
        for (int i = 0; i < count; i++) {
            float both = std::max(most[i], other_most[i]);
            mine[i] = most[i] - both, theirs[i] = other_most[i] - both;
            most[i] = both;
        }
        for (int i = 0; i < count; i += LANES) {
            store(mine + i, exp(load(mine + i)));
            store(theirs + i, exp(load(theirs + i)));
        }
        for (int i = 0; i < count; i++) {
            sum[i] = __builtin_fmaf(theirs[i], other_sum[i], mine[i] * sum[i]);
            F16 x = set1(mine[i]), y = set1(theirs[i]);
            for (float *to = values + i * padded, *end = to + padded; to < end; to += LANES, other += LANES)
                store(to, fma(y, load(other), x * load(to)));
        }
    }

    // The values are `factor` times what they stand for.
    void write(int i, float* out, int dim, float factor) const {
        const float* from = values + i * padded;
        float inverse = 1.0f / sum[i] * (1.0f / factor);
        int k = 0;
        for (; k + LANES <= dim; k += LANES) store(out + k, load(from + k) * set1(inverse));
        for (; k < dim; k++) out[k] = from[k] * inverse;
    }
};
static_assert(MAX_PAIRS <= 2 * LANES);

struct Pass {
    const float* q;
    int64_t stride;
    const KvCache& kv;
    int layer;
    const AttentionPlan& plan;
    const Schedule& schedule;
    float scale;
    float* out;

    float* partial(int slot, int head) const {
        size_t index = (size_t)slot * schedule.heads + head;
        return const_cast<Schedule&>(schedule).partial.take(0) + index * partial_size(kv.dim);
    }
    float* output(int query, int head) const { return out + ((int64_t)query * schedule.heads + head) * kv.dim; }
};

// One item in one thread.
class Worker {
public:
    Worker(const Pass& pass, const Item& item, Buffer<float>& floats, Buffer<char>& bytes)
        : pass_(pass), kv_(pass.kv), item_(item), tile_(pass.schedule.tiles[item.tile]),
          row_(pass.plan.rows[tile_.row]) {
        heads_ = tile_.head_end - tile_.head_begin;
        take_memory(floats);
        take_queries();
        if (tile_.branch >= 0) take_branch(bytes);
    }

    template <KvType T>
    void run() {
        for (int span = item_.first; span < item_.last; span++) {
            pairs_.clear();
            int begin = std::max(span * SPAN, pairs_.least_low / BLOCK * BLOCK);
            int end = std::min((span + 1) * SPAN, pairs_.most_high);
            for (int base = begin; base < end; base += BLOCK) take_block<T>(kv_, block(base), pairs_);
            float sums[MAX_PAIRS];
            for (int i = 0; i < pairs_.count; i++) sums[i] = sum(load(pairs_.sum + i * LANES));
            if (item_.whole) {
                results_.add(pairs_.most, sums, pairs_.values);
            } else {
                keep(span - item_.first, pairs_.most, sums, pairs_.values);
            }
        }
        if (item_.final) {
            for (int i = 0; i < pairs_.count; i++)
                results_.write(i, pass_.output(member(i).query, head(i)), kv_.dim, Stored<T>::factor);
        } else if (item_.whole) {
            keep(0, results_.most, results_.sum, results_.values);
        }
    }

private:
    const Member& member(int pair) const { return pass_.schedule.members[tile_.begin + pair / heads_]; }
    int head(int pair) const {
        int group = pass_.schedule.heads / pass_.schedule.kv_heads;
        return item_.kv_head * group + tile_.head_begin + pair % heads_;
    }

    void take_memory(Buffer<float>& floats) {
        pairs_.count = (tile_.end - tile_.begin) * heads_;
        pairs_.dim = kv_.dim, pairs_.padded = kv_.padded;
        float* at = floats.take(MAX_PAIRS * (MAX_DIM * 3 + BLOCK + LANES));
        pairs_.q = at, at += MAX_PAIRS * MAX_DIM;
        pairs_.scores = at, at += MAX_PAIRS * BLOCK;
        pairs_.sum = at, at += MAX_PAIRS * LANES;
        pairs_.values = at, at += pairs_.count * kv_.padded;
        results_.values = at;
        results_.count = pairs_.count, results_.padded = kv_.padded;
        results_.clear();
    }

    void take_queries() {
        pairs_.least_low = pairs_.least_high = INT32_MAX;
        pairs_.most_low = pairs_.most_high = 0;
        for (int i = 0; i < pairs_.count; i++) {
            int low = pairs_.low[i] = member(i).low, high = pairs_.high[i] = member(i).high;
            pairs_.least_low = std::min(pairs_.least_low, low), pairs_.most_low = std::max(pairs_.most_low, low);
            pairs_.least_high = std::min(pairs_.least_high, high), pairs_.most_high = std::max(pairs_.most_high, high);
        }
        for (int g = 0; g < pairs_.groups(); g++) {
            int first = pairs_.group(g), size = pairs_.group(g + 1) - first;
            float* packed = pairs_.q + first * kv_.dim;
            for (int i = 0; i < size; i++) {
                const float* q = pass_.q + member(first + i).query * pass_.stride + head(first + i) * kv_.dim;
                for (int k = 0; k < kv_.dim; k++) packed[k * size + i] = q[k] * pass_.scale;
            }
        }
    }

    // Pages in which a tree's token and its ancestors lie at their positions, as if they had been a row of their own.
    void take_branch(Buffer<char>& bytes) {
        branch_page_ = row_.start / PAGE;
        int pages = (pairs_.most_high - 1) / PAGE - branch_page_ + 1;
        branch_ = bytes.take(pages * kv_.unit_bytes);
        const char* first = kv_.unit(row_.pages[branch_page_], pass_.layer, item_.kv_head);
        if (row_.start % PAGE) std::memcpy(branch_, first, kv_.unit_bytes);
        for (int token = tile_.branch; token >= 0; token = row_.parent[token]) {
            int slot = row_.start + token, position = pass_.plan.position[row_.first + token];
            const char* from = kv_.unit(row_.pages[slot / PAGE], pass_.layer, item_.kv_head);
            copy_slot(kv_, from, slot % PAGE, branch_ + (position / PAGE - branch_page_) * kv_.unit_bytes, position % PAGE);
        }
    }

    const char* unit(int page) const {
        if (branch_ && page >= branch_page_) return branch_ + (page - branch_page_) * kv_.unit_bytes;
        return kv_.unit(row_.pages[page], pass_.layer, item_.kv_head);
    }

    Block block(int base) const {
        Block b;
        b.base = base;
        b.begin = std::max(0, pairs_.least_low - base);
        b.end = std::min(BLOCK, pairs_.most_high - base);
        b.partly = base < pairs_.most_low || base + BLOCK > pairs_.least_high;
        int last = (pairs_.most_high - 1) / PAGE;
        for (int j = b.first_page(); j < b.end_page(); j++) {
            int page = base / PAGE + j;
            b.unit[j] = unit(page);
            b.ahead[j] = unit(std::min(page + BLOCK_PAGES, last));
        }
        return b;
    }

    void keep(int span, const float* most, const float* sums, const float* values) const {
        for (int i = 0; i < pairs_.count; i++, values += kv_.padded) {
            float* to = pass_.partial(member(i).slot + item_.offset + span, head(i));
            to[0] = most[i], to[1] = sums[i];
            std::memcpy(to + 16, values, kv_.padded * sizeof(float));
        }
    }

    const Pass& pass_;
    const KvCache& kv_;
    const Item& item_;
    const Tile& tile_;
    const PlanRow& row_;
    int heads_;
    Pairs pairs_;
    Results results_;
    char* branch_ = nullptr;
    int branch_page_ = 0;
};

void run_item(const Pass& pass, const Item& item) {
    static thread_local Buffer<float> floats;
    static thread_local Buffer<char> bytes;
    Worker worker(pass, item, floats, bytes);
    with_type(pass.kv.type, [&](auto type) { worker.run<type.value>(); });
}

void merge(const Pass& pass, int query, int head) {
    alignas(64) float values[MAX_DIM];
    Results result;
    result.values = values, result.count = 1, result.padded = pass.kv.padded;
    result.clear();
    for (int slot = pass.schedule.first_slot[query]; slot < pass.schedule.first_slot[query + 1]; slot++) {
        const float* part = pass.partial(slot, head);
        result.add(part, part + 1, part + 16);
    }
    with_type(pass.kv.type, [&](auto type) {
        result.write(0, pass.output(query, head), pass.kv.dim, Stored<type.value>::factor);
    });
}

}  // namespace

void share_out(const AttentionPlan& plan, int heads, const KvCache& kv, int window, int threads) {
    plan.schedule(heads, kv.kv_heads, kv.dim, window, threads);
}

void attend(Team& team, const float* q, int64_t stride, int heads, KvCache& kv, int layer, const AttentionPlan& plan,
            float scale, int window, float* out) {
    const Schedule& schedule = plan.schedule(heads, kv.kv_heads, kv.dim, window, team.count);
    Pass pass{q, stride, kv, layer, plan, schedule, scale, out};
    team.each((int64_t)schedule.items.size(), 1, [&](int64_t i) { run_item(pass, schedule.items[i]); });
    if (schedule.merged.empty()) return;
    team.each((int64_t)schedule.merged.size() * heads, 8,
              [&](int64_t i) { merge(pass, schedule.merged[i / heads], (int)(i % heads)); });
}

}  // namespace bosquet

using namespace bosquet;

// q [queries][heads][dim], rows at a stride counted in floats, to out [queries][heads·dim]. `window` 0: none.
BOSQUET_EXPORT void bosquet_attention(Context* context, const float* q, int64_t stride, int heads, KvCache* kv, int layer,
                                      const AttentionPlan* plan, float scale, int window, float* out) {
    share_out(*plan, heads, *kv, window, context->pool.size());
    context->pool.run(
        [&](Team& team) { attend(team, q, stride, heads, *kv, layer, *plan, scale, window, out); });
}
