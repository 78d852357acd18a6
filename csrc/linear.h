// The table of linear kernels of one instruction set.
#pragma once
#include <cstdint>

#include "formats.h"
#include "op.h"

namespace octavo {

enum Gate : int32_t { GATE_NONE = 0, GATE_SILU = 1, GATE_GELU_TANH = 2 };

// What is done with 32 finished sums of a row, and where the result goes.
struct Epilogue {
    const float* bias = nullptr;      // in block order, padded to whole blocks; or null
    const char* residual = nullptr;   // row r at residual + r * residual_stride; or null
    int64_t residual_stride = 0;
    char* y = nullptr;                // row r at y + r * y_stride
    int64_t y_stride = 0;
    int64_t width = 0;                // columns of y
    Gate gate = GATE_NONE;
    float softcap = 0;                // cap * tanh(y / cap); 0 = off
    int32_t* bad_rows = nullptr;      // [rows]: set where a result is not finite; or null
};

// y[0..rows) = W x for the column blocks [first_block, last_block).
struct LinearTask {
    const char* weights = nullptr;    // packed data
    int64_t block_bytes = 0;
    int64_t groups = 0;
    int64_t cols = 0;                 // K, unpadded: f32 operands are read up to here
    const char* x = nullptr;          // operand rows
    int64_t x_stride = 0;
    int64_t rows = 0;
    Epilogue out;
};

struct LinearKernels {
    // Operand layout that `linear[format]` wants.
    OperandKind operand[NUM_FORMATS];
    // Scratch bytes that a task needs for a matrix of `groups` groups.
    int64_t (*scratch_bytes)(int64_t groups);
    void (*linear[NUM_FORMATS])(const LinearTask&, int64_t first_block, int64_t last_block, char* scratch);
    // Items [first, last) of the rows * groups groups of x: row index = item / groups. Row r reads
    // x + (rows ? rows[r] : r) * x_stride; values beyond `cols` are zero.
    void (*prepare_bf16)(const char* x, int64_t x_stride, const int32_t* rows, int64_t cols, int64_t groups, char* out,
                         int64_t out_stride, int64_t first, int64_t last);
    void (*prepare_int8)(const char* x, int64_t x_stride, const int32_t* rows, int64_t cols, int64_t groups, char* out,
                         int64_t out_stride, int64_t first, int64_t last);
};

}  // namespace octavo
