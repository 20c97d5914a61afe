// Who computes which part of one pass's attention. Knows rows, page lists and positions; no keys, values or types.
//
// Positions are cut into fixed *spans* of 256, and those into blocks of 64. A query's result over one span is accumulated
// block by block from nothing; spans are merged in order. So a span of a query is the same bits whoever computes it, beside
// which other queries, and a plan is free to share and to split.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "attention.h"
#include "context.h"

namespace bosquet {

constexpr int BLOCK = 64, BLOCK_PAGES = BLOCK / PAGE;
constexpr int SPAN = 256, SPAN_PAGES = SPAN / PAGE;
constexpr int MAX_PAIRS = 24;  // pairs of a query and a head in a tile

// One sequence: `length` queries from position `start`. A tree's token i lies in the slot of position start + i, but its
// position is start + its depth; parent[i] is negative for a root.
struct PlanRow {
    int start, length;
    int first;             // its first query in the pass
    const int32_t* pages;  // page of positions 16·i … 16·i + 15
    const int32_t* parent; // null: no tree
};

// Rows order[begin … end) have the same pages for spans first … last − 1, and are computed there together. `own`: the last
// segment of one row, which runs up to each of its queries.
struct Segment {
    int begin, end, first, last;
    bool own;
};

// A query of a tile sees positions low … high − 1. Its partial results go from slot `slot` on.
struct Member {
    int query, low, high, slot;
};

// Queries, times heads head_begin … head_end − 1 of those which share a key head, over the pages of one row. `branch` is
// the token of a draft tree whose ancestors take the row's own positions, or −1.
struct Tile {
    int begin, end;  // of members
    int row, branch, head_begin, head_end;
};

// A tile over spans first … last − 1 of one key head. Where `whole`, the tile sees nothing before: what it has merged is one
// result, the output itself if `final`; else each span is a result of its own. Results go to slot + offset, …
struct Item {
    int tile, kv_head, first, last, offset;
    bool whole, final;
    int64_t cost;
};

// What depends on the heads and the window, made before the members of the pool use it.
struct Schedule {
    int heads, kv_heads, dim, window, threads;
    std::vector<Tile> tiles;
    std::vector<Member> members;
    std::vector<Item> items;      // the dearest first
    std::vector<int> first_slot;  // [queries + 1]; a query without slots is written by its item
    std::vector<int> merged;      // queries with slots
    Buffer<float> partial;        // [slots][heads][partial_size(dim)]: maximum, sum, …, then the sum of values

    bool fits(int heads, int kv_heads, int dim, int window, int threads) const;
};

inline int partial_size(int dim) { return 16 + (dim + 15) / 16 * 16; }

struct AttentionPlan {
    std::vector<PlanRow> rows;
    std::vector<int> row_of, position;  // [queries]
    std::vector<int32_t> pages, parents;
    std::vector<int> order;  // rows, sorted by their pages
    std::vector<Segment> segments;
    mutable std::list<Schedule> schedules;
    mutable size_t used = 0;  // how many of the schedules belong to this pass; the rest keep their memory for the next

    int queries() const { return (int)row_of.size(); }
    // Makes it at the first call with these values: then only one thread may use the plan.
    const Schedule& schedule(int heads, int kv_heads, int dim, int window, int threads) const;
};

// header [rows][4]: start, length, number of pages, whether it is a tree; then the pages and the parents of the trees, row
// after row. Returns the highest page number (−1 without rows), or −2 for a page list shorter than its row, −3 for a parent
// that does not come before its child.
int64_t build_plan(AttentionPlan& plan, int64_t rows, const int32_t* header, const int32_t* pages, const int32_t* parents,
                   bool cascade);

// Fills the tables of `schedule`, whose first five fields are set.
void fill_schedule(const AttentionPlan& plan, Schedule& schedule);

}  // namespace bosquet
