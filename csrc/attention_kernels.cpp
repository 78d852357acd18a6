// Attention on vectors (attention_parts.h says how a step is cut up).
#include "attention_parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

// ---- element types: A is the row operand (Q or P), a vector of the cache is taken in PARTS ---------------

struct F32 {
    using A = float;
    using X = V;
    using B = V;
    static constexpr int PER = 1;    // elements of A that a vector of the cache takes
    static constexpr int PARTS = 1;  // in so many steps
    OCTAVO_INLINE X bcast(const A* a, int) { return set1(*a); }
    OCTAVO_INLINE B load_b(const char* p, int) { return load(reinterpret_cast<const float*>(p)); }
    OCTAVO_INLINE V dot(V acc, X x, B b) { return fma(x, b, acc); }
    // Writes 16 values as operands; returns them as they were written.
    OCTAVO_INLINE V put(A* a, V v) {
        store(a, v);
        return v;
    }
};

// Pairs of bf16 opened into floats, on a float operand: first the even elements, then the odd ones.
struct OpenBF16 : F32 {
    static constexpr int PER = 2, PARTS = 2;
    OCTAVO_INLINE X bcast(const A* a, int part) { return set1(a[part]); }
    OCTAVO_INLINE B load_b(const char* p, int part) { return part ? load_odd_bf16(p) : load_even_bf16(p); }
};

#if defined(__AVX512BF16__)
// Pairs of bf16 by the dot-product instruction, on an operand rounded to bf16.
struct DotBF16 {
    using A = uint16_t;
    using X = __m512bh;
    using B = __m512bh;
    static constexpr int PER = 2, PARTS = 1;
    OCTAVO_INLINE X bcast(const A* a, int) {
        int32_t pair;
        std::memcpy(&pair, a, 4);
        return (__m512bh)_mm512_set1_epi32(pair);
    }
    OCTAVO_INLINE B load_b(const char* p, int) { return (__m512bh)_mm512_loadu_si512(p); }
    OCTAVO_INLINE V dot(V acc, X x, B b) { return {_mm512_dpbf16_ps(acc.v, x, b)}; }
    OCTAVO_INLINE V put(A* a, V v) {
        const __m256i r = (__m256i)_mm512_cvtneps_pbh(v.v);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(a), r);
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(r), 16))};
    }
};
#endif

// ---- register tiles -------------------------------------------------------------------------------------
//
// M rows by N vectors of 16. Up to LOW rows: WIDE vectors, each row operand serves them all; more rows: two
// vectors, each opened once for all rows. Not inlined: each tile gets the registers for itself.

#if defined(__AVX512F__)
constexpr int TALL = 12, LOW = 6, WIDE = 4;
#elif defined(__AVX2__) || defined(__ARM_NEON)
constexpr int TALL = 4, LOW = 4, WIDE = 1;
#else
constexpr int TALL = 2, LOW = 2, WIDE = 1;
#endif

// acc[m][n] += x[m][PER elements] b[n].
template <class D, int M, int N>
OCTAVO_INLINE void tile_step(V (&acc)[M][N], const typename D::A* x, int64_t x_stride, const char* const (&b)[N], int64_t at) {
    OCTAVO_UNROLL for (int part = 0; part < D::PARTS; ++part) {
        typename D::B column[N];
        OCTAVO_UNROLL for (int n = 0; n < N; ++n) column[n] = D::load_b(b[n] + at, part);
        OCTAVO_UNROLL for (int m = 0; m < M; ++m) {
            const typename D::X value = D::bcast(x + m * x_stride, part);
            OCTAVO_UNROLL for (int n = 0; n < N; ++n) acc[m][n] = D::dot(acc[m][n], value, column[n]);
        }
    }
}

template <int M, int N>
OCTAVO_INLINE void clear_tile(V (&acc)[M][N]) {
    OCTAVO_UNROLL for (int m = 0; m < M; ++m) OCTAVO_UNROLL for (int n = 0; n < N; ++n) acc[m][n] = set1(0.0f);
}
template <int M, int N>
OCTAVO_INLINE void store_tile(const V (&acc)[M][N], float* y, int64_t y_stride) {
    OCTAVO_UNROLL for (int m = 0; m < M; ++m) OCTAVO_UNROLL for (int n = 0; n < N; ++n) store(y + m * y_stride + n * LANES, acc[m][n]);
}

// What both products read and write: x rows of Q or P, y rows of scores or of V sums.
template <class D>
struct Product {
    const typename D::A* x;
    int64_t x_stride;
    const char* const* lines;  // K or V of each group of 16 positions
    int64_t step;              // bytes between lines of K or V that follow each other
    int length;                // head_dim, or groups
    int64_t offset;            // of the columns in a line of V
    const char* const* next;   // of each group: what is wanted next, in as many bytes as `lines`; or null
    float* y;
    int64_t y_stride;
};

// y[m][n] = sum over d of q[m][d] K[d][16 positions of group n].
template <class D, int M, int N>
__attribute__((noinline)) void qk_tile(const Product<D>& t) {
    V acc[M][N];
    clear_tile(acc);
    const char *base[N], *next[N];
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) base[n] = t.lines[n];
    int64_t at = 0;
    const int64_t step = t.step, x_stride = t.x_stride;
    const typename D::A *x = t.x, *end = x + t.length;
    if (t.next) {
        OCTAVO_UNROLL for (int n = 0; n < N; ++n) next[n] = t.next[n];
        for (; x < end; x += D::PER, at += step) {
            OCTAVO_UNROLL for (int n = 0; n < N; ++n) __builtin_prefetch(next[n] + at, 0, 2);
            tile_step<D>(acc, x, x_stride, base, at);
        }
    } else {
        for (; x < end; x += D::PER, at += step) tile_step<D>(acc, x, x_stride, base, at);
    }
    store_tile(acc, t.y, t.y_stride);
}

// y[m][n] = sum over positions of p[m][position] V[position][16 columns n].
template <class D, int M, int N>
__attribute__((noinline)) void pv_tile(const Product<D>& t) {
    V acc[M][N];
    clear_tile(acc);
    const int64_t step = t.step, x_stride = t.x_stride;
    const typename D::A* x = t.x;
    for (int g = 0; g < t.length; ++g) {
        const char* base[N];
        OCTAVO_UNROLL for (int n = 0; n < N; ++n) base[n] = t.lines[g] + t.offset + n * 64;
        const char* next = t.next ? t.next[g] + t.offset : nullptr;
        int64_t at = 0;
        for (int j = 0; j < LANES; j += D::PER, x += D::PER, at += step) {
            if (next) OCTAVO_UNROLL for (int n = 0; n < N; ++n) __builtin_prefetch(next + n * 64 + at, 0, 2);
            tile_step<D>(acc, x, x_stride, base, at);
        }
    }
    store_tile(acc, t.y, t.y_stride);
}

template <class D>
using TileFn = void (*)(const Product<D>&);
template <class D>
struct Tiles {  // of N vectors, by rows
    TileFn<D> qk[TALL], pv[TALL];
};
#if defined(__AVX512F__)
#define OCTAVO_TILES(f, n) {f<D, 1, n>, f<D, 2, n>, f<D, 3, n>, f<D, 4, n>, f<D, 5, n>, f<D, 6, n>, f<D, 7, n < 2 ? n : 2>, \
    f<D, 8, n < 2 ? n : 2>, f<D, 9, n < 2 ? n : 2>, f<D, 10, n < 2 ? n : 2>, f<D, 11, n < 2 ? n : 2>, f<D, 12, n < 2 ? n : 2>}
#elif defined(__AVX2__) || defined(__ARM_NEON)
#define OCTAVO_TILES(f, n) {f<D, 1, n>, f<D, 2, n>, f<D, 3, n>, f<D, 4, n>}
#else
#define OCTAVO_TILES(f, n) {f<D, 1, n>, f<D, 2, n>}
#endif
template <class D, int N>
constexpr Tiles<D> TILES = {OCTAVO_TILES(qk_tile, N), OCTAVO_TILES(pv_tile, N)};

// Vectors of the next tile, where `left` are to be done.
OCTAVO_INLINE int tile_width(int rows, int left) {
    const int widest = rows > LOW ? 2 : WIDE;
    return widest >= 4 && left >= 4 ? 4 : widest >= 2 && left >= 2 ? 2 : 1;
}
template <class D>
OCTAVO_INLINE const Tiles<D>& tiles_of(int width) {
    if constexpr (WIDE == 1) return TILES<D, 1>;
    else return width == 4 ? TILES<D, 4> : width == 2 ? TILES<D, 2> : TILES<D, 1>;
}

// ---- one unit -------------------------------------------------------------------------------------------

template <class D>
struct Lanes {
    static constexpr int PER = D::PER, ROWS = ATTEND_ROWS, ROWS_STEP = 1;
    void unit(const Op& op, const Step& step, const Shape& s, const Tile& t, Unit unit, const Tile* next_tile, char* scratch, Result out) const;
};

// Masks a row's scores, finds the maximum, turns scores into probabilities in place and adds them up.
template <class D>
OCTAVO_INLINE void softmax_row(float* s, int n, int first, int last, float cap, float* maximum, float* total) {
    // Visible keys are [first, last) of n.
    const V minus_inf = set1(NEG_INF);
    V top = minus_inf;
    for (int i = 0; i < n; i += LANES) {
        V x = load(s + i);
        if (cap > 0) x = set1(cap * LOG2E) * tanhv(x);
        if (i < first || i + LANES > last) {
            uint32_t mask = 0xffff;
            if (i < first) mask = first - i >= LANES ? 0 : mask << (first - i) & 0xffff;
            if (i + LANES > last) mask = last <= i ? 0 : mask & ((1u << (last - i)) - 1);
            x = select(mask, x, minus_inf);
            store(s + i, x);
        } else if (cap > 0) {
            store(s + i, x);
        }
        top = max(top, x);
    }
    const float m = max_lanes(top);
    const V shift = set1(m == NEG_INF ? 0.0f : m);
    auto* p = reinterpret_cast<typename D::A*>(s);
    V sum = set1(0.0f);
    for (int i = 0; i < n; i += LANES) sum = sum + D::put(p + i, exp2v(load(s + i) - shift));
    *maximum = m;
    *total = sum_lanes(sum);
}

template <class D>
void Lanes<D>::unit(const Op& op, const Step& step, const Shape& s, const Tile& t, Unit unit, const Tile* next_tile, char* scratch, Result out) const {
    using A = typename D::A;
    const int rows = t.queries * s.per_kv, head_dim = s.head_dim, block_size = step.block_size;
    Lines lines;
    find_lines<Lanes>(step, s, t, unit, &lines);
    const int groups = lines.groups, first_group = lines.first_group;

    const bool decode = t.queries == 1;
    Ahead ahead;
    if (decode) find_ahead<Lanes>(step, s, t, unit, next_tile, lines, &ahead);
    const char* const* after_v = decode && ahead.has_k ? ahead.k : nullptr;

    // Q, scaled, as operands.
    auto* scores = reinterpret_cast<float*>(scratch);
    auto* q = reinterpret_cast<A*>(scores + int64_t(s.rows()) * S_STRIDE);
    const int64_t q_stride = head_dim + LANES;
    const V scale = set1(s.scale);
    for (int r = 0; r < rows; ++r) {
        const float* x = op.in[0].f32(t.token + r / s.per_kv) + (int64_t(unit.head) * s.per_kv + r % s.per_kv) * head_dim;
        for (int d = 0; d < head_dim; d += LANES) D::put(q + r * q_stride + d, load(x + d) * scale);
    }

    const int chunks = (rows + TALL - 1) / TALL, tallest = (rows + chunks - 1) / chunks;
    for (int g = 0, n; g < groups; g += n) {
        n = tile_width(tallest, groups - g);
        for (int c = 0; c < chunks; ++c) {
            const int r = rows * c / chunks, m = rows * (c + 1) / chunks - r;
            tiles_of<D>(n).qk[m - 1]({q + r * q_stride, q_stride, lines.k + g, int64_t(block_size) * 4, head_dim, 0, decode && c == 0 ? ahead.v + g : nullptr,
                                      scores + int64_t(r) * S_STRIDE + g * LANES, S_STRIDE});
        }
    }

    const int keys = groups * LANES, start = first_group * LANES;
    for (int r = 0; r < rows; ++r) {
        const int position = place_of(step, t.row, t.token + r / s.per_kv);
        const int first = first_key(s, position) - start, last = position + 1 - start;
        softmax_row<D>(scores + int64_t(r) * S_STRIDE, keys, first < 0 ? 0 : first, last < 0 ? 0 : last < keys ? last : keys, s.cap,
                       out.maxima + r, out.totals + r);
    }

    const auto* p = reinterpret_cast<const A*>(scores);
    constexpr int64_t p_stride = S_STRIDE * int64_t(sizeof(float) / sizeof(A));
    for (int d = 0, n; d < head_dim; d += n * LANES) {
        n = tile_width(tallest, (head_dim - d) / LANES);
        for (int c = 0; c < chunks; ++c) {
            const int r = rows * c / chunks, m = rows * (c + 1) / chunks - r;
            tiles_of<D>(n).pv[m - 1]({p + r * p_stride, p_stride, lines.v, int64_t(head_dim) * 4, groups, d * 4, c == 0 ? after_v : nullptr,
                                      out.sums + int64_t(r) * head_dim + d, head_dim});
        }
    }
}

template <class BF16>
void attend(const Op& op, const Step& step, const Ctx& ctx) {
    if (op.i[KV_DTYPE] == KV_BF16) attend_as<Lanes<BF16>>(op, step, ctx);
    else attend_as<Lanes<F32>>(op, step, ctx);
}

constexpr AttentionKernels PLAIN = {attend<OpenBF16>, attend_scratch_bytes};
#if defined(__AVX512BF16__)
constexpr AttentionKernels WITH_BF16_DOT = {attend<DotBF16>, attend_scratch_bytes};
#endif

}  // namespace

#if defined(__AVX512BF16__)
// The dot product is the faster one on AMD's cores and the slower one on Intel's: see linear_kernels().
const AttentionKernels& attention_kernels() {
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") ? PLAIN : WITH_BF16_DOT;
}
const AttentionKernels& attention_dot_kernels() { return WITH_BF16_DOT; }
#else
const AttentionKernels& attention_kernels() { return PLAIN; }
#endif

}  // namespace octavo::OCTAVO_ISA
