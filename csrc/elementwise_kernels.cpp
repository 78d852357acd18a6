// Embedding, element by element ops, and the gather of sampled rows. Every element is computed by the same
// instructions whatever the number of rows or threads.
#include "isa.h"
#include "ops.h"
#include "lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t CHUNK = 256;  // columns that one thread takes at a time

// Calls f(row, first column, columns) for this thread's chunks of rows x width.
template <class F>
OCTAVO_INLINE void each_chunk(int64_t rows, int64_t width, const Ctx& ctx, F f) {
    const int64_t per_row = (width + CHUNK - 1) / CHUNK;
    const Share mine = share(rows * per_row, ctx.tid, ctx.n);
    if (mine.first >= mine.last) return;
    int64_t row = mine.first / per_row, piece = mine.first % per_row;
    for (int64_t c = mine.first; c < mine.last; ++c) {
        const int64_t at = piece * CHUNK;
        f(row, at, width - at < CHUNK ? width - at : CHUNK);
        if (++piece == per_row) piece = 0, ++row;
    }
}

template <class F>
OCTAVO_INLINE void map1(const Op& op, const Step& step, const Ctx& ctx, F f) {
    each_chunk(num_rows(op, step), op.out[0].width, ctx, [&](int64_t row, int64_t at, int64_t n) {
        const float* x = op.in[0].f32(row) + at;
        float* y = op.out[0].f32(row) + at;
        for (int64_t i = 0; i < n; i += LANES) store_upto(y + i, f(load_upto(x + i, n - i)), n - i);
    });
}

template <class F>
OCTAVO_INLINE void map2(const Op& op, const Step& step, const Ctx& ctx, F f) {
    each_chunk(num_rows(op, step), op.out[0].width, ctx, [&](int64_t row, int64_t at, int64_t n) {
        const float* a = op.in[0].f32(row) + at;
        const float* b = op.in[1].f32(row) + at;
        float* y = op.out[0].f32(row) + at;
        for (int64_t i = 0; i < n; i += LANES)
            store_upto(y + i, f(load_upto(a + i, n - i), load_upto(b + i, n - i)), n - i);
    });
}

OCTAVO_INLINE V silu(V x) { return x * sigmoidv(x); }
// x / 2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation in the tail.
OCTAVO_INLINE V gelu_tanh(V x) {
    const V u2 = x * fma(x * x, set1(0.07135481627f), set1(1.595769121606f));
    return x * sigmoidv(u2);
}
// x / 2 erfc(-x / sqrt 2); erfc by the Chebyshev fit of Numerical Recipes (2nd ed., section 6.2,
// "erfcc"), whose relative error is below 1.2e-7 everywhere.
OCTAVO_INLINE V gelu_erf(V x) {
    const V z = abs(x) * set1(0.70710678118654752f);
    const V t = set1(1.0f) / fma(set1(0.5f), z, set1(1.0f));
    V p = set1(0.17087277f);
    p = fma(p, t, set1(-0.82215223f));
    p = fma(p, t, set1(1.48851587f));
    p = fma(p, t, set1(-1.13520398f));
    p = fma(p, t, set1(0.27886807f));
    p = fma(p, t, set1(-0.18628806f));
    p = fma(p, t, set1(0.09678418f));
    p = fma(p, t, set1(0.37409196f));
    p = fma(p, t, set1(1.00002368f));
    p = fma(p, t, set1(-1.26551223f));
    const V tail = t * expv(p - z * z);
    const V zero = set1(0.0f);
    return set1(0.5f) * x * where_less(zero, x, set1(2.0f) - tail, tail);
}

void embed(const Op& op, const Step& step, const Ctx& ctx) {
    const auto* table = static_cast<const EmbedTable*>(op.w[1]);
    const Share mine = share(step.T, ctx.tid, ctx.n);
    const int64_t width = op.out[0].width;
    const V factor = set1(op.f[0]);
    for (int64_t t = mine.first; t < mine.last; ++t) {
        int64_t id = step.token_ids[t];
        if (id < 0 || id >= table->rows) id = 0;  // ids are checked at admission; never read outside the table
        float* y = op.out[0].f32(t);
        table->dequant(table->type, table->data + id * table->row_bytes, y, width);
        if (op.f[0] != 1.0f)
            for (int64_t i = 0; i < width; i += LANES) store_upto(y + i, load_upto(y + i, width - i) * factor, width - i);
    }
}

void add(const Op& op, const Step& step, const Ctx& ctx) {
    map2(op, step, ctx, [](V a, V b) { return a + b; });
}
void mul(const Op& op, const Step& step, const Ctx& ctx) {
    map2(op, step, ctx, [](V a, V b) { return a * b; });
}
void scale(const Op& op, const Step& step, const Ctx& ctx) {
    const V factor = set1(op.f[0]);
    map1(op, step, ctx, [=](V x) { return x * factor; });
}
void soft_cap(const Op& op, const Step& step, const Ctx& ctx) {
    const V cap = set1(op.f[0]);
    map1(op, step, ctx, [=](V x) { return cap * tanhv(x / cap); });
}
void silu_mul(const Op& op, const Step& step, const Ctx& ctx) {
    map2(op, step, ctx, [](V g, V u) { return silu(g) * u; });
}
void gelu_mul(const Op& op, const Step& step, const Ctx& ctx) {
    map2(op, step, ctx, [](V g, V u) { return gelu_tanh(g) * u; });
}

void act(const Op& op, const Step& step, const Ctx& ctx) {
    const V zero = set1(0.0f);
    switch (op.i[0]) {
        case ACT_SILU: return map1(op, step, ctx, [](V x) { return silu(x); });
        case ACT_GELU_TANH: return map1(op, step, ctx, [](V x) { return gelu_tanh(x); });
        case ACT_GELU_ERF: return map1(op, step, ctx, [](V x) { return gelu_erf(x); });
        case ACT_RELU: return map1(op, step, ctx, [=](V x) { return max(zero, x); });
        case ACT_RELU2: return map1(op, step, ctx, [=](V x) { const V r = max(zero, x); return r * r; });
        case ACT_SIGMOID: return map1(op, step, ctx, [](V x) { return sigmoidv(x); });
        case ACT_TANH: return map1(op, step, ctx, [](V x) { return tanhv(x); });
        default: return map1(op, step, ctx, [](V x) { return x * sigmoidv(x * set1(1.702f)); });
    }
}

void gather_rows(const Op& op, const Step& step, const Ctx& ctx) {
    const int64_t rows = step.S + step.P;
    each_chunk(rows, op.out[0].width, ctx, [&](int64_t row, int64_t at, int64_t n) {
        std::memcpy(op.out[0].f32(row) + at, op.in[0].f32(step.sample_tokens[row]) + at, size_t(n) * 4);
    });
}

}  // namespace

const ElementwiseKernels& elementwise_kernels() {
    static constexpr ElementwiseKernels table = {embed, add, mul, scale, soft_cap, act, silu_mul, gelu_mul, gather_rows};
    return table;
}

}  // namespace octavo::OCTAVO_ISA
