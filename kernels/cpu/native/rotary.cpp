// Rotary positions, and what stands between a projection and attention: norms of heads, rotation, storing.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "context.h"
#include "kv.h"

namespace bosquet {

namespace {

// Pairs (x[j], x[j + dim / 2]), Hugging Face's layout, turned by the angle whose cos and sin are given [dim / 2].
void rotate(const float* x, int dim, const float* cos, const float* sin, float* out) {
    int half = dim / 2, i = 0;
    for (; i + LANES <= half; i += LANES) {
        F16 a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(out + i, fnma(b, s, a * c));
        store(out + half + i, fma(a, s, b * c));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        out[i] = __builtin_fmaf(-b, sin[i], a * cos[i]);
        out[half + i] = __builtin_fmaf(a, sin[i], b * cos[i]);
    }
}

// x [dim] divided by its root mean square, times weight.
void normalize(float* x, int dim, const float* weight, float eps) {
    alignas(64) float squares[LANES] = {};
    F16 total = set1(0);
    int i = 0;
    for (; i + LANES <= dim; i += LANES) total = fma(load(x + i), load(x + i), total);
    for (int rest = i; rest < dim; rest++) squares[rest - i] = x[rest] * x[rest];
    float scale = 1.0f / std::sqrt(sum(total + load(squares)) / (float)dim + eps);
    for (i = 0; i + LANES <= dim; i += LANES) store(x + i, load(x + i) * set1(scale) * load(weight + i));
    for (; i < dim; i++) x[i] = x[i] * scale * weight[i];
}

}  // namespace

void rotate_and_store(Team& team, KvCache& kv, int layer, float* qkv, int64_t tokens, int heads, const float* cos,
                      const float* sin, const int64_t* position, const int64_t* slot, const float* q_norm,
                      const float* k_norm, float eps) {
    int dim = kv.dim, half = dim / 2, turned = heads + kv.kv_heads;
    // Whole pages where there are many tokens: two members that write one page would contend for its cache lines.
    int64_t grain = std::clamp<int64_t>(tokens / (4 * team.count), 1, PAGE);
    team.each(tokens, grain, [&](int64_t t) {
        float* row = qkv + t * (turned + kv.kv_heads) * dim;
        for (int head = 0; head < turned; head++) {
            float* x = row + head * dim;
            const float* norm = head < heads ? q_norm : k_norm;
            if (norm) normalize(x, dim, norm, eps);
            rotate(x, dim, cos + position[t] * half, sin + position[t] * half, x);
        }
        for (int head = 0; head < kv.kv_heads; head++)
            write_slot(kv, layer, head, slot[t], row + (heads + head) * dim, row + (turned + head) * dim);
    });
}

}  // namespace bosquet

using namespace bosquet;

// x [tokens][heads][dim], rows at a stride counted in floats, to out [tokens][heads][dim]; cos and sin [tokens][dim / 2].
BOSQUET_EXPORT void bosquet_rotary(Context* context, const float* x, int64_t stride, int64_t tokens, int heads, int dim,
                                   const float* cos, const float* sin, float* out) {
    context->pool.run([&](Team& team) {
        team.each(tokens, PAGE, [&](int64_t t) {
            const float *c = cos + t * (dim / 2), *s = sin + t * (dim / 2);
            for (int head = 0; head < heads; head++)
                rotate(x + t * stride + head * dim, dim, c, s, out + (t * heads + head) * dim);
        });
    });
}

BOSQUET_EXPORT void bosquet_rotate_and_store(Context* context, KvCache* kv, int layer, float* qkv, int64_t tokens,
                                             int heads, const float* cos, const float* sin, const int64_t* position,
                                             const int64_t* slot, const float* q_norm, const float* k_norm, float eps) {
    context->pool.run([&](Team& team) {
        rotate_and_store(team, *kv, layer, qkv, tokens, heads, cos, sin, position, slot, q_norm, k_norm, eps);
    });
}
