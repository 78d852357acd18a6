// From rows of a model file to a packed Weight. Streams: one block of 32 rows at a time and thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "dequant.h"
#include "formats.h"

namespace octavo {

// Rows of one tensor as they lie in the file. Row i of the model's tensor is row order[i] of `data`.
struct Part {
    Type type = TYPE_F32;
    const uint8_t* data = nullptr;
    size_t bytes = 0;
    int64_t rows = 0, cols = 0;
    const int32_t* order = nullptr;
    size_t order_size = 0;
};

// The format that keeps a type's own lattice, or comes nearest.
Format natural_format(Type t);
// The format that suits all parts: their common natural one, or w8 for mixed block types, or the widest.
Format natural_format(const std::vector<Part>& parts);
// Whether packing `t` as `f` keeps every value exactly.
bool is_lossless(Type t, Format f);

// Parts stacked by rows, or two parts of one shape interleaved (gate and up). Throws
// std::invalid_argument when the bytes do not fit the shapes.
Weight pack(const std::vector<Part>& parts, Format format, bool interleave, int num_threads);

// Of the layouts in formats.h and of what pack() makes of a file's values. Whoever changes either raises it:
// packed forms on disk of other versions are made anew.
constexpr int PACKING_VERSION = 1;

// A packed matrix of that shape, without bytes. Interleaved rows are those of both parts.
Weight shaped(Format format, int64_t rows, int64_t cols, bool interleave);

// Exact values [rows, cols], in the order of the parts' rows (interleaved: first all of the first part).
std::vector<double> unpack(const Weight& w);

// Dequantises rows of a tensor in parallel; `out` is [part.rows, part.cols].
void dequantise(const Part& part, float* out, int num_threads);

}  // namespace octavo
