// What the linear kernels of every instruction set share: the epilogue of finished sums, operand rows, prefetches.
// Included by linear_kernels.cpp and linear_amx.h only.
#pragma once
#include "lanes.h"
#include "linear.h"

namespace octavo::OCTAVO_ISA {
namespace {

OCTAVO_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// ---------------------------------------------------------------------------------------------------
// Epilogue

// x / (1 + e^(-argument)): silu, and the logistic form of gelu's tanh approximation. Beyond +-87 the argument
// is cut off: the quotient is as good as 0 there and keeps away from subnormal numbers.
OCTAVO_INLINE V times_sigmoid(V x, V argument) {
    const V e = expv(min(set1(87.0f), max(set1(-87.0f), set1(0.0f) - argument)));
    return x / (set1(1.0f) + e);
}
OCTAVO_INLINE V silu(V x) { return times_sigmoid(x, x); }
// 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
OCTAVO_INLINE V gelu_tanh(V x) {
    const V cubic = fma(x * x * x, set1(0.044715f), x);
    return times_sigmoid(x, cubic * set1(1.59576912160573071f));
}
// For the soft-cap of logits, with more terms than tanhv: the odd Taylor series to z^13 is good to 1e-7 up to 0.5.
OCTAVO_INLINE V tanh_of(V z) {
    const V big = set1(1.0f) - set1(2.0f) / (expv(z + z) + set1(1.0f));
    const V s = z * z;
    V p = set1(3.5921280366e-3f);
    p = fma(p, s, set1(-8.8632355299e-3f));
    p = fma(p, s, set1(2.1869488536e-2f));
    p = fma(p, s, set1(-5.3968253968e-2f));
    p = fma(p, s, set1(1.3333333333e-1f));
    p = fma(p, s, set1(-3.3333333333e-1f));
    return where_less(abs(z), set1(0.5f), p * s * z + z, big);
}

OCTAVO_INLINE bool all_finite(V v) { return mask_gt(set1(__builtin_inff()), abs(v)) == (1u << LANES) - 1; }

OCTAVO_INLINE void put(const Epilogue& e, V v, int64_t row, int64_t col) {
    const int64_t n = smaller(LANES, e.width - col);
    float* y = reinterpret_cast<float*>(e.y + row * e.y_stride) + col;
    if (e.residual) {
        const float* residual = reinterpret_cast<const float*>(e.residual + row * e.residual_stride) + col;
        v = v + (n == LANES ? load(residual) : load_part(residual, int(n)));
    }
    if (e.bad_rows && !all_finite(v)) e.bad_rows[row] = 1;
    if (e.softcap != 0) v = set1(e.softcap) * tanh_of(v / set1(e.softcap));
    if (n == LANES) store(y, v);
    else store_upto(y, v, n);
}

// The sums of a tile, 32 a row. Not inlined: it runs once a tile, and every tile would carry a copy.
__attribute__((noinline)) void finish(const Epilogue& e, const float* sums, int rows, int64_t row, int64_t block) {
    for (int i = 0; i < rows; i++, row++, sums += BLOCK_COLS) {
        V a = load(sums), b = load(sums + 16);
        if (e.bias) {
            a = a + load(e.bias + block * BLOCK_COLS);
            b = b + load(e.bias + block * BLOCK_COLS + 16);
        }
        if (e.gate == GATE_NONE) {
            const int64_t col = block * BLOCK_COLS;
            put(e, a, row, col);
            if (col + 16 < e.width) put(e, b, row, col + 16);
        } else {
            V g = e.gate == GATE_SILU ? silu(a) : gelu_tanh(a);
            put(e, g * b, row, block * 16);
        }
    }
}

// ---------------------------------------------------------------------------------------------------
// Operands and prefetches

// Bytes that a streaming block is fetched ahead: a few rows use a kilobyte up in 25 ns, and a large third-level cache
// answers after 100.
constexpr int64_t FAR_AHEAD = 8192;

// What a tile fetches while it works: its own block, soon to be read, into the first-level cache, or the next block.
struct Ahead {
    const char* p;
    int lines_a_group;
    bool soon;
};
OCTAVO_INLINE void fetch(Ahead& ahead) {
    if (ahead.soon)
        for (int i = 0; i < ahead.lines_a_group; i++, ahead.p += 64) __builtin_prefetch(ahead.p, 0, 3);
    else
        for (int i = 0; i < ahead.lines_a_group; i++, ahead.p += 64) __builtin_prefetch(ahead.p, 0, 2);
}

// The operand's rows of a tile: row i at p + i * stride. Three rows share a base register.
template <int R>
struct Rows {
    const char* base[(R + 2) / 3];
    int64_t stride;
    OCTAVO_INLINE Rows make(const char* x, int64_t stride) {
        Rows r;
        r.stride = stride;
        OCTAVO_UNROLL for (int i = 0; i < (R + 2) / 3; i++) r.base[i] = x + 3 * i * stride;
        return r;
    }
    OCTAVO_INLINE const char* row(const Rows& r, int i) { return r.base[i / 3] + (i % 3) * r.stride; }
    OCTAVO_INLINE void advance(Rows& r, int64_t bytes) {
        OCTAVO_UNROLL for (int i = 0; i < (R + 2) / 3; i++) r.base[i] += bytes;
    }
};

// The 32 values of a group, zeros behind the last column.
OCTAVO_INLINE const float* group_values(const char* row, int64_t cols, int64_t group, float* space) {
    const float* x = reinterpret_cast<const float*>(row) + group * GROUP;
    const int64_t n = cols - group * GROUP;
    if (n >= GROUP) return x;
    for (int i = 0; i < GROUP; i++) space[i] = i < n ? x[i] : 0.0f;
    return space;
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA
