// What the linear kernels of set avx512_amx share: how rows are cut into panels.
#pragma once
#include "linear.h"
#include "linear_parts.h"

namespace octavo::OCTAVO_ISA {

// Rows of w4, with the operand of avx512_bf16 (int8).
void linear_w4_tiles(const LinearTask& task, int64_t first, int64_t last, char* scratch);
int64_t w4_tiles_scratch(int64_t groups);

namespace {

constexpr int64_t TALL = 32;  // rows of two tiles, one below the other
constexpr int64_t MAX_PANEL = 512;
constexpr int64_t SUMS_BYTES = (MAX_PANEL + TALL) * BLOCK_COLS * 4;

// Rows whose operand stays in the second-level cache while the blocks of weights pass by.
inline int64_t panel_rows(int64_t stride) {
    constexpr int64_t BYTES = 1 << 20, LEAST = 96;
    const int64_t rows = BYTES / stride;
    return rows < LEAST ? LEAST : smaller(rows, MAX_PANEL);
}

inline LinearTask rows_of(const LinearTask& task, int64_t from, int64_t rows) {
    LinearTask part = task;
    part.x += from * task.x_stride;
    part.rows = rows;
    part.out.y += from * task.out.y_stride;
    if (part.out.residual) part.out.residual += from * task.out.residual_stride;
    if (part.out.bad_rows) part.out.bad_rows += from;
    return part;
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA
