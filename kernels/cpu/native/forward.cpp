// All layers of a decoder in one call: the members of the pool go through the stages together, so a pass costs one start of
// the pool, not a call from Python an operation.

#include <algorithm>
#include <ctime>
#include <vector>

#include "attention.h"
#include "pointwise.h"
#include "weight.h"

namespace bosquet {

namespace {

// Weights of different types that stand side by side in one projection.
struct Projection {
    std::vector<const Weight*> parts;
    int64_t outs() const {
        int64_t total = 0;
        for (const Weight* part : parts) total += part->outs;
        return total;
    }
    bool quantized() const {
        for (const Weight* part : parts)
            if (part->form.quantized()) return true;
        return false;
    }
};

}  // namespace

}  // namespace bosquet

using namespace bosquet;

// What one layer is made of; fields as in kernels/cpu/forward.py. Norms that a family lacks are null.
struct LayerSpec {
    const void* qkv[3];  // one to three weights
    const float *q_norm, *k_norm;
    const void* out;
    const float* out_norm;  // on the attention's output, before it is added
    const float* mlp_norm;
    const void* gate_up[2];  // one weight, or gate and up apart
    const void* down;
    const float* down_norm;  // on the block's output, before it is added
    const float* next_norm;
    const float *cos, *sin;
    int64_t window;  // 0: none
};

struct StackSpec {
    const LayerSpec* layers;
    int64_t count, hidden, heads, kv_heads, head_dim;
    int64_t activation;  // After
    const void* embedding;
    const float* first_norm;
    float eps, scale, embed_scale;
};

namespace {

struct Layer {
    LayerSpec spec;
    Projection qkv, gate_up;
    const Weight &out, &down;
    explicit Layer(const LayerSpec& s) : spec(s), out(*(const Weight*)s.out), down(*(const Weight*)s.down) {
        for (const void* part : s.qkv)
            if (part) qkv.parts.push_back((const Weight*)part);
        for (const void* part : s.gate_up)
            if (part) gate_up.parts.push_back((const Weight*)part);
    }
};

constexpr size_t FETCHED = 96 << 10;  // what stays in the second cache beside what is worked on

// What a pass spends its time on, in the order of kernels/cpu/forward.py.
enum Stage : int { EMBED, QKV, ROTARY, ATTENTION, OUT, NORM, GATE_UP, DOWN, QUANTIZE, STAGES };

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

// Gate and up can be one product when their panels do not share outputs.
bool fuses(const Layer& layer) { return layer.gate_up.parts.size() == 1 && layer.down.width % PANEL == 0; }

struct Stack {
    StackSpec spec;
    std::vector<Layer> layers;
    Buffer<float> residual, normed, qkv, attended, inner, both, output;
    RowsBuffer hidden_rows, attended_rows, inner_rows;
    int64_t spent_ns[STAGES] = {};
    bool fused = true;  // in every layer: a file may store one gate in another type than its up
};

// One pass: what its members share.
struct Pass {
    Stack& stack;
    KvCache& kv;
    const AttentionPlan& plan;
    const int64_t *tokens, *positions, *slots;
    int64_t count;
    float *residual, *qkv, *attended, *inner, *both, *output;
    float* normed;
    Rows hidden_rows, attended_rows, inner_rows;
    int64_t since;

    // The time since the last call goes to `stage`. A stage is done before the next begins, so one member's clock is everybody's.
    void spent(const Team& team, Stage stage) {
        if (team.index) return;
        const int64_t now = now_ns();
        stack.spent_ns[stage] += now - since;
        since = now;
    }
};

int64_t grain(int64_t count, const Team& team) { return count >= 8 * team.count ? 4 : 1; }

void project(Team& team, const Projection& to, const Rows& rows, int64_t count, float* out) {
    const int64_t stride = to.outs();
    int64_t at = 0;
    for (const Weight* part : to.parts) {
        linear(team, *part, rows, count, STORE, out + at, stride);
        at += part->outs;
    }
}

void embed(Team& team, Pass& pass, const Layer& first) {
    const StackSpec& spec = pass.stack.spec;
    team.each(pass.count, grain(pass.count, team), [&](int64_t row) {
        float* x = pass.residual + row * spec.hidden;
        unpack_row(*(const Weight*)spec.embedding, pass.tokens[row], x);
        if (spec.embed_scale != 1.0f)
            for (int64_t i = 0; i < spec.hidden; i++) x[i] *= spec.embed_scale;
        rms_norm(x, spec.first_norm, spec.eps, spec.hidden, pass.normed + row * spec.hidden);
        if (first.qkv.quantized()) quantize(pass.hidden_rows, spec.hidden, row, row + 1);
    });
}

// residual += output, after a norm of its own if there is one; normed = norm(residual), quantized for what comes next.
void add_and_norm(Team& team, Pass& pass, const float* own, const float* weight, bool quantized) {
    const StackSpec& spec = pass.stack.spec;
    team.each(pass.count, grain(pass.count, team), [&](int64_t row) {
        float *output = pass.output + row * spec.hidden, *residual = pass.residual + row * spec.hidden;
        if (own) rms_norm(output, own, spec.eps, spec.hidden, output);
        add(output, spec.hidden, residual);
        rms_norm(residual, weight, spec.eps, spec.hidden, pass.normed + row * spec.hidden);
        if (quantized) quantize(pass.hidden_rows, spec.hidden, row, row + 1);
    });
}

void quantize_all(Team& team, const Rows& rows, int64_t width, int64_t count) {
    team.pieces(count, grain(count, team), [&](int64_t begin, int64_t end) { quantize(rows, width, begin, end); });
}

// Whoever waits from now on fetches the beginning of a weight that is needed soon: memory would idle meanwhile.
void expect(Team& team, const Weight& weight) { team.fetch(weight.data.get(), std::min(weight.bytes(), FETCHED)); }

void feed_forward(Team& team, Pass& pass, const Layer& layer, const Layer* following) {
    const After after = (After)pass.stack.spec.activation;
    const int64_t inner = layer.down.width;
    expect(team, layer.down);
    if (fuses(layer)) {
        linear(team, *layer.gate_up.parts[0], pass.hidden_rows, pass.count, after, pass.inner, inner);
    } else {
        project(team, layer.gate_up, pass.hidden_rows, pass.count, pass.both);
        team.each(pass.count, 1, [&](int64_t row) {
            const float *gate = pass.both + row * 2 * inner, *up = gate + inner;
            runs(inner, [&](int64_t i, int64_t n) {
                const F16 x = load_run(gate + i, n);
                store_some(pass.inner + row * inner + i, (after == SILU_MUL ? silu(x) : gelu(x)) * load_run(up + i, n), n);
            });
        });
    }
    pass.spent(team, GATE_UP);
    if (layer.down.form.quantized()) quantize_all(team, pass.inner_rows, inner, pass.count);
    pass.spent(team, QUANTIZE);
    if (following) expect(team, *following->qkv.parts[0]);
    linear(team, layer.down, pass.inner_rows, pass.count, STORE, pass.output, pass.stack.spec.hidden);
    pass.spent(team, DOWN);
}

void forward(Team& team, Pass& pass) {
    Stack& stack = pass.stack;
    const StackSpec& spec = stack.spec;
    const int64_t width = spec.heads * spec.head_dim, stride = width + 2 * spec.kv_heads * spec.head_dim;
    embed(team, pass, stack.layers[0]);
    pass.spent(team, EMBED);
    for (size_t i = 0; i < stack.layers.size(); i++) {
        const Layer& layer = stack.layers[i];
        const Layer* following = i + 1 < stack.layers.size() ? &stack.layers[i + 1] : nullptr;
        expect(team, layer.out);
        project(team, layer.qkv, pass.hidden_rows, pass.count, pass.qkv);
        pass.spent(team, QKV);
        rotate_and_store(team, pass.kv, i, pass.qkv, pass.count, spec.heads, layer.spec.cos, layer.spec.sin, pass.positions,
                         pass.slots, layer.spec.q_norm, layer.spec.k_norm, spec.eps);
        pass.spent(team, ROTARY);
        attend(team, pass.qkv, stride, spec.heads, pass.kv, i, pass.plan, spec.scale, layer.spec.window, pass.attended);
        pass.spent(team, ATTENTION);
        if (layer.out.form.quantized()) quantize_all(team, pass.attended_rows, width, pass.count);
        pass.spent(team, QUANTIZE);
        expect(team, *layer.gate_up.parts[0]);
        linear(team, layer.out, pass.attended_rows, pass.count, STORE, pass.output, spec.hidden);
        pass.spent(team, OUT);
        add_and_norm(team, pass, layer.spec.out_norm, layer.spec.mlp_norm, layer.gate_up.quantized());
        pass.spent(team, NORM);
        feed_forward(team, pass, layer, following);
        add_and_norm(team, pass, layer.spec.down_norm, layer.spec.next_norm, following && following->qkv.quantized());
        pass.spent(team, NORM);
    }
}

}  // namespace

BOSQUET_EXPORT void* bosquet_stack_create(const StackSpec* spec) {
    Stack* stack = new Stack{*spec, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    for (int64_t i = 0; i < spec->count; i++) {
        stack->layers.emplace_back(spec->layers[i]);
        stack->fused = stack->fused && fuses(stack->layers.back());
    }
    return stack;
}

BOSQUET_EXPORT void bosquet_stack_destroy(void* stack) { delete (Stack*)stack; }

// hidden [count, hidden]: the state of every token after the last norm. Stores keys and values at `slots`.
BOSQUET_EXPORT void bosquet_forward(void* context, void* stack, void* kv, const void* plan, const int64_t* tokens,
                                    const int64_t* positions, const int64_t* slots, int64_t count, float* hidden) {
    Stack& s = *(Stack*)stack;
    const StackSpec& spec = s.spec;
    const int64_t width = spec.heads * spec.head_dim, inner = s.layers[0].down.width;
    Pass pass{s, *(KvCache*)kv, *(const AttentionPlan*)plan, tokens, positions, slots, count,
              s.residual.take(count * spec.hidden), s.qkv.take(count * (width + 2 * spec.kv_heads * spec.head_dim)),
              s.attended.take(count * width), s.inner.take(count * inner),
              s.fused ? nullptr : s.both.take(count * 2 * inner),
              s.output.take(count * spec.hidden), hidden, {}, {}, {}, now_ns()};
    pass.hidden_rows = s.hidden_rows.take(hidden, spec.hidden, spec.hidden, count);
    pass.attended_rows = s.attended_rows.take(pass.attended, width, width, count);
    pass.inner_rows = s.inner_rows.take(pass.inner, inner, inner, count);
    Pool& pool = ((Context*)context)->pool;
    for (const Layer& layer : s.layers) share_out(pass.plan, spec.heads, pass.kv, layer.spec.window, pool.size());
    pool.run([&](Team& team) { forward(team, pass); });
}

// seconds [STAGES]: what all passes of this stack have spent on each stage.
BOSQUET_EXPORT void bosquet_stack_profile(const void* stack, double* seconds) {
    for (int i = 0; i < STAGES; i++) seconds[i] = (double)((const Stack*)stack)->spent_ns[i] * 1e-9;
}
