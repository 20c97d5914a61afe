#include "attention_plan.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>

namespace bosquet {

namespace {

constexpr int SHARING = 8;  // rows of more queries fill tiles by themselves, and would leave many partial results

int shareable(const PlanRow& row) { return row.length <= SHARING ? row.start / SPAN : 0; }

int common_spans(const PlanRow& a, const PlanRow& b) {
    int most = std::min(shareable(a), shareable(b)), n = 0;
    constexpr size_t bytes = SPAN_PAGES * sizeof(int32_t);
    while (n < most && !std::memcmp(a.pages + n * SPAN_PAGES, b.pages + n * SPAN_PAGES, bytes)) n++;
    return n;
}

// Rows order[begin … end) are sorted and share spans 0 … first − 1: one segment for what they all share beyond, then the same
// for each group that shares still more.
void divide(AttentionPlan& plan, int begin, int end, int first) {
    auto row = [&](int i) -> const PlanRow& { return plan.rows[plan.order[i]]; };
    if (end - begin == 1) {
        plan.segments.push_back({begin, end, first, INT_MAX, true});
        return;
    }
    int last = common_spans(row(begin), row(end - 1));  // sorted: those between share as much
    if (last > first) plan.segments.push_back({begin, end, first, last, false});
    for (int i = begin, j; i < end; i = j) {
        for (j = i + 1; j < end && common_spans(row(i), row(j)) > last; j++) {}
        divide(plan, i, j, last);
    }
}

void find_segments(AttentionPlan& plan, bool cascade) {
    plan.order.resize(plan.rows.size());
    std::iota(plan.order.begin(), plan.order.end(), 0);
    plan.segments.clear();
    if (cascade) {
        auto before = [&](int x, int y) {
            const PlanRow &a = plan.rows[x], &b = plan.rows[y];
            return std::lexicographical_compare(a.pages, a.pages + shareable(a) * SPAN_PAGES, b.pages,
                                                b.pages + shareable(b) * SPAN_PAGES);
        };
        std::stable_sort(plan.order.begin(), plan.order.end(), before);
        if (!plan.rows.empty()) divide(plan, 0, (int)plan.rows.size(), 0);
    } else {
        for (int i = 0; i < (int)plan.rows.size(); i++) plan.segments.push_back({i, i + 1, 0, INT_MAX, true});
    }
}

// A chain is an ordinary row.
bool is_chain(const int32_t* parent, int length) {
    for (int i = 0; i < length; i++)
        if (parent[i] != i - 1 && !(i == 0 && parent[i] < 0)) return false;
    return true;
}

}  // namespace

int64_t build_plan(AttentionPlan& plan, int64_t rows, const int32_t* header, const int32_t* pages, const int32_t* parents,
                   bool cascade) {
    int64_t page_count = 0, parent_count = 0;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t* h = header + 4 * r;
        if (h[0] < 0 || h[1] < 1 || (int64_t)h[2] * PAGE < (int64_t)h[0] + h[1]) return -2;
        page_count += h[2];
        parent_count += h[3] ? h[1] : 0;
    }
    plan.pages.assign(pages, pages + page_count);
    plan.parents.assign(parents, parents + parent_count);
    plan.rows.clear(), plan.row_of.clear(), plan.position.clear();
    plan.used = 0;
    const int32_t *page = plan.pages.data(), *parent = plan.parents.data();
    for (int64_t r = 0; r < rows; r++, header += 4) {
        PlanRow row{header[0], header[1], plan.queries(), page, header[3] ? parent : nullptr};
        page += header[2];
        if (row.parent) {
            parent += row.length;
            if (is_chain(row.parent, row.length)) row.parent = nullptr;
        }
        for (int i = 0; i < row.length; i++) {
            plan.row_of.push_back((int)r);
            if (row.parent && row.parent[i] >= i) return -3;
            bool child = row.parent && row.parent[i] >= 0;
            int above = child ? plan.position[row.first + row.parent[i]] + 1 : row.start;
            plan.position.push_back(row.parent ? above : row.start + i);
        }
        plan.rows.push_back(row);
    }
    find_segments(plan, cascade);
    return plan.pages.empty() ? -1 : *std::max_element(plan.pages.begin(), plan.pages.end());
}

const Schedule& AttentionPlan::schedule(int heads, int kv_heads, int dim, int window, int threads) const {
    auto it = schedules.begin();
    for (size_t i = 0; i < used; i++, ++it)
        if (it->fits(heads, kv_heads, dim, window, threads)) return *it;
    if (it == schedules.end()) it = schedules.emplace(it);
    it->heads = heads, it->kv_heads = kv_heads, it->dim = dim, it->window = window, it->threads = threads;
    fill_schedule(*this, *it);
    used++;
    return *it;
}

}  // namespace bosquet

using namespace bosquet;

BOSQUET_EXPORT AttentionPlan* bosquet_plan_create() { return new AttentionPlan; }

BOSQUET_EXPORT void bosquet_plan_destroy(AttentionPlan* plan) { delete plan; }

BOSQUET_EXPORT int64_t bosquet_plan_build(AttentionPlan* plan, int64_t rows, const int32_t* header, const int32_t* pages,
                                          const int32_t* parents, int cascade) {
    return build_plan(*plan, rows, header, pages, parents, cascade != 0);
}
