// The block formats of GGUF files, one row at a time. Source: ggml's ggml-common.h (layout) and its documentation.
#pragma once

#include <cstdint>

#include "weight.h"

namespace bosquet {

// One row in plain form: q as stored (INT4: 0 … 15; INT8: signed), and scales and minima a block (or half a block).
struct PlainRow {
    float* values;  // [width] for float storages
    int8_t* q;      // [blocks·32]
    float* d;       // [blocks] or [2·blocks]
    float* m;       // [blocks]
};

// The form that a tensor of this GGUF type keeps its precision in. False: not a type that is known here.
bool form_of(int gguf_type, Form& form);

// Reads one row of a tensor of this GGUF type.
void read_row(int gguf_type, const uint8_t* source, int64_t width, PlainRow& row);

// Quantizes one row of floats to blocks of 32: INT8 symmetric, or INT4 with a minimum.
void quantize_row(const float* source, int64_t width, Storage storage, PlainRow& row);

}  // namespace bosquet
