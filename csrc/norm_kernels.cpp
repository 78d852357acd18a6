// RMSNorm and LayerNorm. A row's sums run over 16 lanes in column order, then over the lanes in one order.
#include <cmath>

#include "isa.h"
#include "ops.h"
#include "lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

OCTAVO_INLINE float sum_of_squares(const float* x, int64_t n) {
    V a = set1(0.0f), b = set1(0.0f);
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const V u = load(x + i), v = load(x + i + LANES);
        a = fma(u, u, a);
        b = fma(v, v, b);
    }
    for (; i < n; i += LANES) {
        const V u = load_upto(x + i, n - i);
        a = fma(u, u, a);
    }
    return sum_lanes(a + b);
}

OCTAVO_INLINE void rms_row(const float* x, const float* w, float* y, int64_t n, float eps, V offset) {
    const V inv = set1(1.0f / std::sqrt(sum_of_squares(x, n) / float(n) + eps));
    for (int64_t i = 0; i < n; i += LANES)
        store_upto(y + i, load_upto(x + i, n - i) * inv * (load_upto(w + i, n - i) + offset), n - i);
}

void rms_norm(const Op& op, const Step& step, const Ctx& ctx) {
    const auto* w = static_cast<const float*>(op.w[0]);
    const int64_t width = op.in[0].width, group = op.i[0] ? op.i[0] : width, groups = width / group;
    const V offset = set1(op.f[1]);
    const Share mine = share(int64_t(num_rows(op, step)) * groups, ctx.tid, ctx.n);
    for (int64_t j = mine.first; j < mine.last; ++j) {
        const int64_t row = j / groups, at = j % groups * group;
        rms_row(op.in[0].f32(row) + at, w, op.out[0].f32(row) + at, group, op.f[0], offset);
    }
}

void add_rms_norm(const Op& op, const Step& step, const Ctx& ctx) {
    const auto* w = static_cast<const float*>(op.w[0]);
    const int64_t width = op.in[0].width;
    const V offset = set1(op.f[1]);
    const Share mine = share(num_rows(op, step), ctx.tid, ctx.n);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const float* x = op.in[0].f32(row);
        const float* residual = op.in[1].f32(row);
        float* sum = op.out[0].f32(row);
        for (int64_t i = 0; i < width; i += LANES)
            store_upto(sum + i, load_upto(x + i, width - i) + load_upto(residual + i, width - i), width - i);
        rms_row(sum, w, op.out[1].f32(row), width, op.f[0], offset);
    }
}

void layer_norm(const Op& op, const Step& step, const Ctx& ctx) {
    const auto* w = static_cast<const float*>(op.w[0]);
    const auto* bias = static_cast<const float*>(op.w[1]);
    const int64_t n = op.in[0].width;
    const Share mine = share(num_rows(op, step), ctx.tid, ctx.n);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const float* x = op.in[0].f32(row);
        float* y = op.out[0].f32(row);
        V total = set1(0.0f);
        for (int64_t i = 0; i < n; i += LANES) total = total + load_upto(x + i, n - i);
        const V mean = set1(sum_lanes(total) / float(n));
        V squares = set1(0.0f);
        for (int64_t i = 0; i < n; i += LANES) {
            V d = load_upto(x + i, n - i) - mean;
            if (n - i < LANES) d = select((1u << (n - i)) - 1, d, set1(0.0f));
            squares = fma(d, d, squares);
        }
        const V inv = set1(1.0f / std::sqrt(sum_lanes(squares) / float(n) + op.f[0]));
        for (int64_t i = 0; i < n; i += LANES) {
            V r = (load_upto(x + i, n - i) - mean) * inv * load_upto(w + i, n - i);
            if (bias) r = r + load_upto(bias + i, n - i);
            store_upto(y + i, r, n - i);
        }
    }
}

}  // namespace

const NormKernels& norm_kernels() {
    static constexpr NormKernels table = {rms_norm, add_rms_norm, layer_norm};
    return table;
}

}  // namespace octavo::OCTAVO_ISA
