#include "blocks.h"

#include <cmath>
#include <cstring>

#include "simd.h"

namespace bosquet {

namespace {

enum Gguf : int { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };

float half(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return _cvtsh_ss(bits);
}

void low_and_high(const uint8_t* packed, int8_t* q) {
    for (int j = 0; j < 16; j++) {
        q[j] = packed[j] & 15;
        q[j + 16] = packed[j] >> 4;
    }
}

// Blocks of 32 with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
void read_simple(int type, const uint8_t* p, int64_t blocks, PlainRow& row) {
    const bool minima = type == Q4_1 || type == Q5_1, five = type == Q5_0 || type == Q5_1;
    for (int64_t b = 0; b < blocks; b++) {
        int8_t* q = row.q + b * BLOCK;
        row.d[b] = half(p);
        p += 2;
        if (minima) {
            row.m[b] = half(p);
            p += 2;
        }
        if (type == Q8_0) {
            std::memcpy(q, p, BLOCK);
            p += BLOCK;
            continue;
        }
        uint32_t fifth = 0;
        if (five) {
            std::memcpy(&fifth, p, 4);
            p += 4;
        }
        low_and_high(p, q);
        p += 16;
        for (int j = 0; five && j < BLOCK; j++) {
            q[j] = (int8_t)(q[j] | (fifth >> j & 1) << 4);
            if (type == Q5_0) q[j] -= 16;
        }
    }
}

// Six-bit scale and minimum number j of the eight in a block of 256.
void k_scale(const uint8_t* packed, int j, int& scale, int& minimum) {
    if (j < 4) {
        scale = packed[j] & 63;
        minimum = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

// Blocks of 256 in eight parts of 32: Q4_K and Q5_K.
void read_k(bool five, const uint8_t* p, int64_t width, PlainRow& row) {
    for (int64_t at = 0; at < width; at += 256) {
        const float d = half(p), least = half(p + 2);
        const uint8_t *scales = p + 4, *fifth = p + 16, *packed = p + (five ? 48 : 16);
        for (int j = 0; j < 8; j++) {
            int scale, minimum;
            k_scale(scales, j, scale, minimum);
            const int64_t block = at / BLOCK + j;
            row.d[block] = d * (float)scale;
            row.m[block] = -(least * (float)minimum);
            for (int i = 0; i < 32; i++) {
                int q = packed[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
                if (five) q |= (fifth[i] >> j & 1) << 4;
                row.q[block * BLOCK + i] = (int8_t)q;
            }
        }
        p += five ? 176 : 144;
    }
}

// Blocks of 256 with sixteen scales: Q6_K. Two halves of 128; in each, four runs of 32.
void read_q6(const uint8_t* p, int64_t width, PlainRow& row) {
    for (int64_t at = 0; at < width; at += 256, p += 210) {
        const int8_t* scales = (const int8_t*)(p + 192);
        const float d = half(p + 208);
        for (int half_index = 0; half_index < 2; half_index++) {
            const uint8_t *low = p + half_index * 64, *high = p + 128 + half_index * 32;
            for (int run = 0; run < 4; run++) {
                const int64_t to = at + half_index * 128 + run * 32;
                for (int i = 0; i < 32; i++) {
                    int q = low[run % 2 * 32 + i] >> (run / 2 * 4) & 15;
                    q |= (high[i] >> (run * 2) & 3) << 4;
                    row.q[to + i] = (int8_t)(q - 32);
                }
                for (int part = 0; part < 2; part++)
                    row.d[to / 16 + part] = d * (float)scales[half_index * 8 + run * 2 + part];
            }
        }
    }
}

}  // namespace

bool form_of(int type, Form& form) {
    switch (type) {
        case F32: form = {FLOAT32, false, false, false}; return true;
        case F16: form = {FLOAT16, false, false, false}; return true;
        case BF16: form = {BFLOAT16, false, false, false}; return true;
        case Q4_0: form = {INT4, false, false, false}; return true;
        case Q4_1: form = {INT4, true, false, false}; return true;
        case Q5_0: case Q8_0: form = {INT8, false, false, false}; return true;
        case Q5_1: form = {INT8, true, false, false}; return true;
        case Q4_K: form = {INT4, true, true, false}; return true;
        case Q5_K: form = {INT8, true, true, false}; return true;
        case Q6_K: form = {INT8, false, true, true}; return true;
    }
    return false;
}

void read_row(int type, const uint8_t* source, int64_t width, PlainRow& row) {
    switch (type) {
        case F32: std::memcpy(row.values, source, width * 4); break;
        case F16:
            for (int64_t i = 0; i < width; i++) row.values[i] = half(source + 2 * i);
            break;
        case BF16:
            for (int64_t i = 0; i < width; i++) {
                uint16_t bits;
                std::memcpy(&bits, source + 2 * i, 2);
                row.values[i] = bf16_to_float(bits);
            }
            break;
        case Q4_K: read_k(false, source, width, row); break;
        case Q5_K: read_k(true, source, width, row); break;
        case Q6_K: read_q6(source, width, row); break;
        default: read_simple(type, source, width / BLOCK, row);
    }
}

void quantize_row(const float* source, int64_t width, Storage storage, PlainRow& row) {
    for (int64_t at = 0; at < width; at += BLOCK) {
        const int64_t n = width - at < BLOCK ? width - at : BLOCK, block = at / BLOCK;
        float low = source[at], high = source[at];
        for (int64_t i = 1; i < n; i++) {
            low = std::fmin(low, source[at + i]);
            high = std::fmax(high, source[at + i]);
        }
        // The scale is rounded to float16, as it will be stored, before numbers are rounded to it.
        float d, m = 0;
        if (storage == INT8) {
            d = std::fmax(-low, high) / 127;
        } else {
            d = (high - low) / 15;
            m = _cvtsh_ss(_cvtss_sh(low, _MM_FROUND_TO_NEAREST_INT));
            row.m[block] = m;
        }
        d = _cvtsh_ss(_cvtss_sh(d, _MM_FROUND_TO_NEAREST_INT));
        row.d[block] = d;
        const float least = storage == INT8 ? -127 : 0, most = storage == INT8 ? 127 : 15;
        for (int64_t i = 0; i < n; i++) {
            float q = d == 0 ? 0 : std::nearbyint((source[at + i] - m) / d);
            row.q[at + i] = (int8_t)std::fmin(std::fmax(q, least), most);
        }
    }
}

}  // namespace bosquet
