// Cuts the segments of a pass into tiles and items. Knows positions and costs only.
#include <algorithm>
#include <climits>

#include "attention_plan.h"

namespace bosquet {

namespace {

constexpr int64_t PARTIAL_BYTES = 32 << 20;  // more partial results than this are not worth sharing or splitting

class Scheduler {
public:
    Scheduler(const AttentionPlan& plan, Schedule& out, bool share, bool split)
        : plan_(plan), out_(out), share_(share), split_(split), group_(out.heads / out.kv_heads), slots_(plan.queries()) {
        heads_ = std::min(group_, MAX_PAIRS);
        queries_ = std::max(1, MAX_PAIRS / group_);
    }

    // Returns the bytes of partial results.
    int64_t run() {
        out_.tiles.clear(), out_.members.clear(), out_.items.clear(), out_.merged.clear();
        target_ = 0;
        walk([&](const Segment& s, const int* query, int n, int) { target_ += cost(n, spans(s, query, n)); });
        target_ = std::max<int64_t>(1, target_ * out_.kv_heads / (out_.threads * 8));
        walk([&](const Segment& s, const int* query, int n, int branch) { add(s, query, n, branch); });
        int total = 0;
        out_.first_slot.resize(plan_.queries() + 1);
        for (int q = 0; q < plan_.queries(); q++) {
            out_.first_slot[q] = total;
            total += slots_[q];
            if (slots_[q]) out_.merged.push_back(q);
        }
        out_.first_slot[plan_.queries()] = total;
        for (Member& member : out_.members) member.slot += out_.first_slot[member.query];
        std::stable_sort(out_.items.begin(), out_.items.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
        return (int64_t)total * out_.heads * partial_size(out_.dim) * (int64_t)sizeof(float);
    }

private:
    struct Spans {
        int first, last;
        int count() const { return std::max(0, last - first); }
    };

    int low(int query) const { return out_.window ? std::max(0, plan_.position[query] + 1 - out_.window) : 0; }

    Spans spans(const Segment& segment, const int* query, int n) const {
        int least = INT_MAX, most = 0;
        for (int i = 0; i < n; i++) {
            least = std::min(least, low(query[i]));
            most = std::max(most, plan_.position[query[i]] + 1);
        }
        return {std::max(segment.first, least / SPAN), std::min(segment.last, (most + SPAN - 1) / SPAN)};
    }

    // Reading a span costs about what computing it for two pairs does.
    int64_t cost(int n, Spans range) const { return (int64_t)(n * group_ + 2) * range.count(); }

    // visit(segment, its queries, how many, the branch or −1) for each set of queries that can be one tile.
    template <class Visit>
    void walk(Visit visit) {
        if (!share_) {
            for (int i = 0; i < (int)plan_.order.size(); i++) walk_segment({i, i + 1, 0, INT_MAX, true}, visit);
            return;
        }
        for (const Segment& segment : plan_.segments) walk_segment(segment, visit);
    }

    template <class Visit>
    void walk_segment(const Segment& segment, Visit visit) {
        const PlanRow& row = plan_.rows[plan_.order[segment.begin]];
        if (!segment.own || !row.parent) {
            walk_tiles(segment, visit);
            return;
        }
        // A tree's queries see the same keys only before the span in which the tree begins.
        int fork = std::max(segment.first, row.start / SPAN);
        if (fork > segment.first) walk_tiles({segment.begin, segment.end, segment.first, fork, false}, visit);
        Segment own{segment.begin, segment.end, fork, segment.last, true};
        for (int i = 0; i < row.length; i++) {
            int query = row.first + i;
            visit(own, &query, 1, i);
        }
    }

    template <class Visit>
    void walk_tiles(const Segment& segment, Visit visit) {
        all_.clear();
        for (int i = segment.begin; i < segment.end; i++) {
            const PlanRow& row = plan_.rows[plan_.order[i]];
            for (int j = 0; j < row.length; j++) all_.push_back(row.first + j);
        }
        int n = (int)all_.size(), tiles = (n + queries_ - 1) / queries_;
        for (int i = 0; i < tiles; i++) {
            int begin = (int)((int64_t)n * i / tiles), end = (int)((int64_t)n * (i + 1) / tiles);
            visit(segment, all_.data() + begin, end - begin, -1);
        }
    }

    void add(const Segment& segment, const int* query, int n, int branch) {
        Spans range = spans(segment, query, n);
        if (!range.count()) return;
        bool fresh = true;
        for (int i = 0; i < n; i++) fresh = fresh && slots_[query[i]] == 0;
        int step = range.count();
        if (split_ && out_.threads > 1) {
            int64_t runs = std::min<int64_t>(step, (cost(n, range) + target_ - 1) / target_);
            step = (int)((step + runs - 1) / runs);
        }
        bool final = fresh && segment.own && step == range.count();
        for (int head = 0; head < group_; head += heads_) {
            int begin = (int)out_.members.size(), tile = (int)out_.tiles.size();
            for (int i = 0; i < n; i++)
                out_.members.push_back({query[i], low(query[i]), plan_.position[query[i]] + 1, slots_[query[i]]});
            out_.tiles.push_back(
                {begin, begin + n, plan_.order[segment.begin], branch, head, std::min(group_, head + heads_)});
            add_items(tile, range, step, fresh, final);
        }
        int results = fresh ? 1 + range.count() - step : range.count();
        if (!final)
            for (int i = 0; i < n; i++) slots_[query[i]] += results;
    }

    void add_items(int tile, Spans range, int step, bool fresh, bool final) {
        const Tile& t = out_.tiles[tile];
        int pairs = (t.end - t.begin) * (t.head_end - t.head_begin);
        for (int first = range.first; first < range.last; first += step) {
            int last = std::min(range.last, first + step);
            bool whole = fresh && first == range.first;
            int offset = first - range.first;
            if (fresh && !whole) offset -= step - 1;  // the first item leaves one result
            for (int head = 0; head < out_.kv_heads; head++)
                out_.items.push_back({tile, head, first, last, offset, whole, final, (int64_t)(pairs + 2) * (last - first)});
        }
    }

    const AttentionPlan& plan_;
    Schedule& out_;
    const bool share_, split_;
    const int group_;
    int heads_, queries_;
    int64_t target_ = 0;
    std::vector<int> slots_, all_;
};

}  // namespace

bool Schedule::fits(int heads, int kv_heads, int dim, int window, int threads) const {
    return this->heads == heads && this->kv_heads == kv_heads && this->dim == dim && this->window == window &&
           this->threads == threads;
}

void fill_schedule(const AttentionPlan& plan, Schedule& schedule) {
    int64_t bytes = Scheduler(plan, schedule, true, true).run();
    if (bytes > PARTIAL_BYTES) bytes = Scheduler(plan, schedule, false, true).run();
    if (bytes > PARTIAL_BYTES) bytes = Scheduler(plan, schedule, false, false).run();
    schedule.partial.take(bytes / sizeof(float));
}

}  // namespace bosquet
