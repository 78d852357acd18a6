// What the linear kernels of set avx512_amx share.
#pragma once
#include "linear.h"

namespace octavo::OCTAVO_ISA {

// Rows of w4, with the operand of avx512_bf16 (int8).
void linear_w4_tiles(const LinearTask& task, int64_t first, int64_t last, char* scratch);
int64_t w4_tiles_scratch(int64_t groups);

}  // namespace octavo::OCTAVO_ISA
