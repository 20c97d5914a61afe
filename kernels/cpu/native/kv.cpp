#include "kv.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "context.h"

namespace bosquet {

namespace {

constexpr size_t HUGE = 2 << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

bool all_below(const int64_t* x, int64_t n, int64_t limit) {
    return std::all_of(x, x + n, [&](int64_t y) { return 0 <= y && y < limit; });
}

// Symmetric: q = x · 127 / largest |x|, to the nearest; returns the scale that turns q back into x.
float quantize(const float* x, int padded, int8_t* q) {
    F16 top = set1(0);
    for (int i = 0; i < padded; i += LANES) top = max(top, abs(load(x + i)));
    float most = largest(top);
    F16 inverse = set1(most > 0 ? 127.0f / most : 0.0f);
    for (int i = 0; i < padded; i += LANES) store_i8(q + i, load(x + i) * inverse);
    return most / 127.0f;
}

template <KvType T>
void write_unit(const KvCache& kv, char* unit, int slot, const float* k, const float* v) {
    using Element = typename Stored<T>::Element;
    Element column[MAX_DIM];  // of keys
    Element* row = (Element*)(unit + kv.values) + slot * kv.padded;
    if constexpr (T == KV_INT8) {
        ((float*)(unit + kv.key_scales))[slot] = quantize(k, kv.padded, column);
        ((float*)(unit + kv.value_scales))[slot] = quantize(v, kv.padded, row);
    } else {
        for (int i = 0; i < kv.padded; i += LANES) {
            Stored<T>::write(row + i, load(v + i));
            Stored<T>::write(column + i, load(k + i));
        }
    }
    Element* key = (Element*)unit + Stored<T>::place(slot);
    for (int i = 0; i < kv.dim; i += LANES)
        for (int lane = 0; lane < LANES && i + lane < kv.dim; lane++)
            key[(i + lane) * PAGE] = column[i + Stored<T>::place(lane)];
}

template <KvType T>
void copy_slot_of(const KvCache& kv, const char* from, int from_slot, char* to, int to_slot) {
    using Element = typename Stored<T>::Element;
    const Element* source = (const Element*)from + Stored<T>::place(from_slot);
    Element* key = (Element*)to + Stored<T>::place(to_slot);
    for (int i = 0; i < kv.dim; i++) key[i * PAGE] = source[i * PAGE];
    size_t row = kv.padded * sizeof(Element);
    std::memmove(to + kv.values + to_slot * row, from + kv.values + from_slot * row, row);
    if (T == KV_INT8) {
        ((float*)(to + kv.key_scales))[to_slot] = ((const float*)(from + kv.key_scales))[from_slot];
        ((float*)(to + kv.value_scales))[to_slot] = ((const float*)(from + kv.value_scales))[from_slot];
    }
}

// The first n slots of a unit; `from` may be `to`.
void copy_slots(const KvCache& kv, const char* from, char* to, int n) {
    if (from == to) return;
    if (n == PAGE) {
        std::memcpy(to, from, kv.unit_bytes);
    } else {
        for (int slot = 0; slot < n; slot++) copy_slot(kv, from, slot, to, slot);
    }
}

}  // namespace

void write_slot(const KvCache& kv, int layer, int head, int64_t slot, const float* k, const float* v) {
    char* unit = kv.unit(slot / PAGE, layer, head);
    int at = slot % PAGE;
    alignas(64) float wide[2][MAX_DIM];
    if (kv.dim != kv.padded) {  // whole vectors are read below
        for (int i = kv.dim; i < kv.padded; i++) wide[0][i] = wide[1][i] = 0;
        k = (const float*)std::memcpy(wide[0], k, kv.dim * sizeof(float));
        v = (const float*)std::memcpy(wide[1], v, kv.dim * sizeof(float));
    }
    with_type(kv.type, [&](auto type) { write_unit<type.value>(kv, unit, at, k, v); });
}

void copy_slot(const KvCache& kv, const char* from, int from_slot, char* to, int to_slot) {
    with_type(kv.type, [&](auto type) { copy_slot_of<type.value>(kv, from, from_slot, to, to_slot); });
}

}  // namespace bosquet

using namespace bosquet;

// Storage of zeros; memory is taken when a page is first written. Null when the system refuses. 2 ≤ dim ≤ 256.
BOSQUET_EXPORT KvCache* bosquet_kv_create(int layers, int kv_heads, int pages, int dim, int type) {
    KvCache kv{};
    kv.layers = layers, kv.kv_heads = kv_heads, kv.pages = pages, kv.dim = dim;
    kv.padded = (int)round_up(dim, LANES);
    kv.type = (KvType)type;
    kv.element = type == KV_INT8 ? 1 : type == KV_BFLOAT16 ? 2 : 4;
    kv.values = dim * PAGE * kv.element;
    kv.key_scales = kv.values + kv.padded * PAGE * kv.element;
    kv.value_scales = kv.key_scales + PAGE * sizeof(float);
    kv.unit_bytes = round_up(type == KV_INT8 ? kv.value_scales + PAGE * sizeof(float) : kv.key_scales, 64);
    kv.mapped = (size_t)pages * layers * kv_heads * kv.unit_bytes;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, kv.mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    if (kv.mapped >= HUGE) madvise(memory, kv.mapped, MADV_HUGEPAGE);  // a refusal costs speed only
    kv.data = (char*)memory;
    return new KvCache(kv);
}

BOSQUET_EXPORT void bosquet_kv_destroy(KvCache* kv) {
    munmap(kv->data, kv->mapped);
    delete kv;
}

// The bytes that all pages take when every one has been written.
BOSQUET_EXPORT int64_t bosquet_kv_bytes(const KvCache* kv) {
    return (int64_t)kv->pages * kv->layers * kv->kv_heads * (int64_t)kv->unit_bytes;
}

// k and v [tokens][kv_heads][dim], rows at strides counted in floats, to slot[tokens]. Returns 0, or −1 and does nothing when
// there is no such slot; so do the two below.
BOSQUET_EXPORT int bosquet_kv_write(Context* context, KvCache* kv, int layer, const float* k, int64_t k_stride,
                                    const float* v, int64_t v_stride, const int64_t* slot, int64_t tokens) {
    if (!all_below(slot, tokens, (int64_t)kv->pages * PAGE)) return -1;
    context->pool.run([&](Team& team) {
        team.each(tokens, PAGE, [&](int64_t t) {
            for (int head = 0; head < kv->kv_heads; head++) {
                int64_t at = (int64_t)head * kv->dim;
                write_slot(*kv, layer, head, slot[t], k + t * k_stride + at, v + t * v_stride + at);
            }
        });
    });
    return 0;
}

// For i = 0 … n − 1, one after the other: the first count[i] slots of page src[i] to page dst[i], in all layers.
BOSQUET_EXPORT int bosquet_kv_copy_pages(Context* context, KvCache* kv, const int64_t* src, const int64_t* dst,
                                         const int64_t* count, int64_t n) {
    if (!all_below(src, n, kv->pages) || !all_below(dst, n, kv->pages) || !all_below(count, n, PAGE + 1)) return -1;
    context->pool.run([&](Team& team) {
        team.each(kv->layers, 1, [&](int64_t layer) {
            for (int64_t i = 0; i < n; i++)
                for (int head = 0; head < kv->kv_heads; head++)
                    copy_slots(*kv, kv->unit(src[i], layer, head), kv->unit(dst[i], layer, head), (int)count[i]);
        });
    });
    return 0;
}

// Slots src[n] to dst[n] in all layers, as if all were read before any is written. `dst` names a slot at most once.
BOSQUET_EXPORT int bosquet_kv_move_slots(Context* context, KvCache* kv, const int64_t* src, const int64_t* dst, int64_t n) {
    int64_t slots = (int64_t)kv->pages * PAGE;
    if (!all_below(src, n, slots) || !all_below(dst, n, slots)) return -1;
    size_t held = round_up(n, PAGE) / PAGE * kv->unit_bytes;
    context->pool.run([&](Team& team) {
        std::vector<char> kept(held);
        team.each((int64_t)kv->layers * kv->kv_heads, 1, [&](int64_t which) {
            int layer = which / kv->kv_heads, head = which % kv->kv_heads;
            auto place = [&](int64_t i) { return kept.data() + i / PAGE * kv->unit_bytes; };
            for (int64_t i = 0; i < n; i++)
                copy_slot(*kv, kv->unit(src[i] / PAGE, layer, head), src[i] % PAGE, place(i), i % PAGE);
            for (int64_t i = 0; i < n; i++)
                copy_slot(*kv, place(i), i % PAGE, kv->unit(dst[i] / PAGE, layer, head), dst[i] % PAGE);
        });
    });
    return 0;
}
