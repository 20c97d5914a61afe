// Packs weights, once, at load; and reads rows of packed weights back.

#include <cmath>
#include <cstring>
#include <memory>

#include "blocks.h"
#include "simd.h"
#include "weight.h"

namespace bosquet {

namespace {

void store_scales(uint8_t* at, const float* values, bool wide) {
    if (wide) {
        std::memcpy(at, values, PANEL * 4);
        return;
    }
    for (int o = 0; o < PANEL; o++) {
        uint16_t bits = _cvtss_sh(values[o], _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(at + 2 * o, &bits, 2);
    }
}

float read_scale(const uint8_t* at, int o, bool wide) {
    if (wide) {
        float x;
        std::memcpy(&x, at + 4 * o, 4);
        return x;
    }
    uint16_t bits;
    std::memcpy(&bits, at + 2 * o, 2);
    return _cvtsh_ss(bits);
}

// The sixteen rows of one panel, in plain form.
struct PlainPanel {
    std::vector<float> values, d, m;
    std::vector<int8_t> q;
    int64_t width, blocks;
    PlainPanel(int64_t width, int64_t blocks)
        : values(PANEL * blocks * BLOCK), d(PANEL * blocks * 2), m(PANEL * blocks), q(PANEL * blocks * BLOCK),
          width(width), blocks(blocks) {}
    PlainRow row(int o) {
        return {&values[o * blocks * BLOCK], &q[o * blocks * BLOCK], &d[o * blocks * 2], &m[o * blocks]};
    }
    void clear(Form form) {
        std::fill(values.begin(), values.end(), 0.0f);
        std::fill(d.begin(), d.end(), 0.0f);
        std::fill(m.begin(), m.end(), 0.0f);
        // What is padded must add nothing: a four-bit number without a minimum is taken less 8.
        std::fill(q.begin(), q.end(), form.storage == INT4 && !form.minima ? 8 : 0);
    }
};

void pack_floats(const Form& form, PlainPanel& plain, int64_t block, uint8_t* to) {
    for (int k = 0; k < BLOCK; k++) {
        for (int o = 0; o < PANEL; o++) {
            const float x = plain.values[(o * plain.blocks + block) * BLOCK + k];
            const int at = k * PANEL + o;
            if (form.storage == FLOAT32) std::memcpy(to + at * 4, &x, 4);
            uint16_t bits = form.storage == BFLOAT16 ? float_to_bf16(x) : _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
            if (form.storage != FLOAT32) std::memcpy(to + at * 2, &bits, 2);
        }
    }
}

void pack_numbers(const Form& form, PlainPanel& plain, int64_t block, uint8_t* to) {
    for (int o = 0; o < PANEL; o++) {
        const int8_t* q = &plain.q[(o * plain.blocks + block) * BLOCK];
        for (int k = 0; k < BLOCK; k++) {
            const int step = k / 4, at = o * 4 + k % 4;
            if (form.storage == INT8)
                to[step * 64 + at] = (uint8_t)q[k];
            else if (step < 4)
                to[step * 64 + at] = (uint8_t)(q[k] | q[k + 16] << 4);
        }
    }
}

void pack_block(const Form& form, PlainPanel& plain, int64_t block, uint8_t* to) {
    if (!form.quantized()) return pack_floats(form, plain, block, to);
    pack_numbers(form, plain, block, to);
    to += form.numbers();
    const int parts = form.halves ? 2 : 1;
    float lane[PANEL];
    for (int part = 0; part < parts; part++) {
        for (int o = 0; o < PANEL; o++) lane[o] = plain.d[o * plain.blocks * 2 + block * parts + part];
        store_scales(to, lane, form.wide);
        to += PANEL * (form.wide ? 4 : 2);
    }
    if (!form.minima) return;
    for (int o = 0; o < PANEL; o++) lane[o] = plain.m[o * plain.blocks + block];
    store_scales(to, lane, form.wide);
}

Weight* make_weight(Arena& arena, Form form, int64_t outs, int64_t width, const float* bias) {
    auto weight = std::make_unique<Weight>();
    *weight = {form, outs, width, (outs + PANEL - 1) / PANEL, (width + BLOCK - 1) / BLOCK, nullptr, nullptr};
    weight->data = arena.take(weight->bytes());
    if (!weight->data) return nullptr;
    if (bias) {
        weight->bias = (float*)std::calloc(weight->panels * PANEL, 4);
        std::memcpy(weight->bias, bias, outs * 4);
    }
    return weight.release();
}

}  // namespace

void unpack_row(const Weight& weight, int64_t index, float* out) {
    const Form& form = weight.form;
    const int o = index % PANEL;
    const uint8_t* block = weight.panel(index / PANEL);
    const int64_t scale_bytes = PANEL * (form.wide ? 4 : 2);
    for (int64_t at = 0; at < weight.width; at += BLOCK, block += form.block_bytes()) {
        const uint8_t* scales = block + form.numbers();
        const float least =
            form.minima ? read_scale(scales + scale_bytes * (form.halves ? 2 : 1), o, form.wide) : 0.0f;
        for (int k = 0; k < BLOCK && at + k < weight.width; k++) {
            const uint8_t* lane = block + k / 4 * 64 + o * 4 + k % 4;
            float value;
            uint16_t bits;
            switch (form.storage) {
                case FLOAT32: std::memcpy(&value, block + (k * PANEL + o) * 4, 4); break;
                case FLOAT16:
                    std::memcpy(&bits, block + (k * PANEL + o) * 2, 2);
                    value = _cvtsh_ss(bits);
                    break;
                case BFLOAT16:
                    std::memcpy(&bits, block + (k * PANEL + o) * 2, 2);
                    value = bf16_to_float(bits);
                    break;
                default: {
                    int q = form.storage == INT8 ? (int8_t)*lane : k < 16 ? *lane & 15 : lane[-256] >> 4;
                    if (form.storage == INT4 && !form.minima) q -= 8;
                    const float d = read_scale(scales + (form.halves ? k / 16 * scale_bytes : 0), o, form.wide);
                    value = d * (float)q + least;
                }
            }
            out[at + k] = value;
        }
    }
}

}  // namespace bosquet

using namespace bosquet;

// Packs `outs` rows of a tensor of GGUF type `type`, each at rows[i]; bias [outs] or null. `storage` −1 keeps the type's own
// precision; otherwise the rows must be float32 and are stored as FLOAT32, FLOAT16, BFLOAT16, INT4 or INT8.
// Null: unknown type, or no memory.
BOSQUET_EXPORT void* bosquet_pack(void* context, int type, int storage, const uint8_t* const* rows, int64_t outs,
                                  int64_t width, const float* bias) {
    Form form;
    if (!form_of(type, form)) return nullptr;
    if (storage >= 0) form = {(Storage)storage, storage == INT4, false, false};
    Context& here = *(Context*)context;
    Weight* weight = make_weight(here.weights, form, outs, width, bias);
    if (!weight) return nullptr;
    here.pool.run([&](Team& team) {
        PlainPanel plain(width, weight->blocks);
        team.each(weight->panels, 4, [&](int64_t panel) {
            plain.clear(form);
            for (int o = 0; o < PANEL && panel * PANEL + o < outs; o++) {
                PlainRow row = plain.row(o);
                const uint8_t* source = rows[panel * PANEL + o];
                if (storage == INT4 || storage == INT8)
                    quantize_row((const float*)source, width, form.storage, row);
                else
                    read_row(type, source, width, row);
            }
            uint8_t* to = weight->data.get() + panel * weight->panel_bytes();
            for (int64_t b = 0; b < weight->blocks; b++, to += form.block_bytes()) pack_block(form, plain, b, to);
        });
    });
    return weight;
}

BOSQUET_EXPORT void bosquet_free_weight(void* weight) {
    std::free(((Weight*)weight)->bias);
    delete (Weight*)weight;
}

BOSQUET_EXPORT int64_t bosquet_weight_bytes(const void* weight) {
    return (int64_t)((const Weight*)weight)->bytes();
}

// out [count, width]: rows `ids` of the weight as floats.
BOSQUET_EXPORT void bosquet_unpack(void* context, const void* weight, const int64_t* ids, int64_t count, float* out) {
    const Weight& w = *(const Weight*)weight;
    ((Context*)context)->pool.run([&](Team& team) {
        team.each(count, 8, [&](int64_t i) { unpack_row(w, ids[i], out + i * w.width); });
    });
}
