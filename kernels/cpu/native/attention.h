// Keys and values in pages, and attention over them. Knows page and slot numbers; nothing of models.
#pragma once

#include <cstdint>

#include "pool.h"

namespace bosquet {

constexpr int PAGE = 16;

enum KvType : int { KV_FLOAT32 = 0, KV_BFLOAT16 = 1, KV_INT8 = 2 };

struct KvCache;        // layout is attention.cpp's own
struct AttentionPlan;  // one pass: its rows, page lists, who shares which blocks; built once, read by every layer

// In place on qkv [tokens][heads + 2·kv_heads][d]: normalise each query and key head (if the norms are given), rotate queries
// and keys by cos and sin [positions][d / 2] (rows chosen by `position`), then store keys and values at their slots.
// All members of the team call it; it is done when it returns.
void rotate_and_store(Team& team, KvCache& kv, int layer, float* qkv, int64_t tokens, int heads, const float* cos,
                      const float* sin, const int64_t* position, const int64_t* slot, const float* q_norm,
                      const float* k_norm, float eps);

// Decides who computes what, once a pass for each window, before `threads` members attend.
void share_out(const AttentionPlan& plan, int heads, const KvCache& kv, int window, int threads);

// Causal attention of the pass's queries: q is row t, head h at q[t·stride + h·d]; out [tokens][heads·d].
// All members of the team call it; it is done when it returns.
void attend(Team& team, const float* q, int64_t stride, int heads, KvCache& kv, int layer, const AttentionPlan& plan,
            float scale, int window, float* out);

}  // namespace bosquet
