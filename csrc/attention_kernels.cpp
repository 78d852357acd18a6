// Paged causal attention with grouped heads, sliding window, soft-cap and sinks.
//
// Keys are taken in splits of 512 positions, aligned to position 0. A split gives every query row (max, sum,
// weighted V) with the order of all additions fixed by position alone; splits are merged in order. Masked keys
// have probability exactly 0 and leave max, sum and accumulators as they are, so a row's bits depend neither
// on which queries share its tile nor on how work is shared out over threads: decode and prefill agree.
//
// A *tile* is some consecutive query tokens of one request; its rows are (token, head of one KV head). A *unit*
// is (tile, KV head, split). Units are laid out in one line and cut into shares of equal cost; where a cut falls
// inside a tile, later threads leave their splits in AttendSpace and the thread that has the first split
// of a head merges them after a barrier.
#include <cmath>

#include "isa.h"
#include "ops.h"
#include "lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int SPLIT = 512;
constexpr int SPLIT_GROUPS = SPLIT / LANES;
constexpr int S_STRIDE = SPLIT + LANES;  // floats; not a power of two, so that rows fall into different cache sets
constexpr float LOG2E = 1.4426950408889634f;
const float NEG_INF = -__builtin_inff();

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

// ---- the plan of a step ---------------------------------------------------------------------------------

struct Shape {
    int group, index, kv_heads, head_dim, heads, window, per_kv;  // per_kv: query heads of a KV head
    int queries;                                                   // most query tokens of a tile
    float scale, cap;
    int64_t slot_floats;  // a result: [rows][head_dim] V sums, [rows] maxima, [rows] sums
    int rows() const { return queries * per_kv; }
};

Shape shape_of(const Op& op) {
    Shape s;
    s.group = op.i[KV_GROUP], s.index = op.i[KV_INDEX], s.kv_heads = op.i[KV_HEADS], s.head_dim = op.i[KV_HEAD_DIM];
    s.heads = op.i[KV_FIRST_FREE], s.window = op.i[KV_FIRST_FREE + 1];
    s.per_kv = s.heads / s.kv_heads;
    s.queries = s.per_kv >= ATTEND_ROWS ? 1 : ATTEND_ROWS / s.per_kv;
    s.cap = op.f[1];
    s.scale = s.cap > 0 ? op.f[0] / s.cap : op.f[0] * LOG2E;  // scores come out in units of cap, or of log 2
    s.slot_floats = (int64_t(s.rows()) * (s.head_dim + 2) + LANES - 1) / LANES * LANES;
    return s;
}

struct Tile {
    int64_t row = 0;              // request
    int token = 0, queries = 0;   // first token in the step, tokens
    int first_group = 0, last_group = 0;  // of 16 keys, inclusive: all that any query of the tile sees
    int first_split = 0, splits = 0;
    int64_t cost = 0;             // of one KV head
};

// Cost of one group of 16 keys: reading it, and the arithmetic of each row.
OCTAVO_INLINE int64_t group_cost(const Shape& s, int queries) { return 4 + int64_t(queries) * s.per_kv; }

OCTAVO_INLINE int first_key(const Shape& s, int position) {
    return s.window > 0 && position >= s.window ? position - s.window + 1 : 0;
}

// The place of a token in its request's KV. (Step::positions serves rope, and may differ.)
OCTAVO_INLINE int place_of(const Step& step, int64_t row, int token) {
    return step.context_lens[row] + token - step.row_starts[row];
}

OCTAVO_INLINE Tile tile_at(const Shape& s, const Step& step, int64_t row, int token) {
    Tile t;
    t.row = row, t.token = token;
    const int left = step.row_starts[row + 1] - token;
    t.queries = left < s.queries ? left : s.queries;
    t.first_group = first_key(s, place_of(step, row, token)) / LANES;
    t.last_group = place_of(step, row, token + t.queries - 1) / LANES;
    t.first_split = t.first_group / SPLIT_GROUPS;
    t.splits = t.last_group / SPLIT_GROUPS - t.first_split + 1;
    t.cost = (t.last_group - t.first_group + 1) * group_cost(s, t.queries);
    return t;
}

// Units of a tile in line. One query token: all KV heads of a split, then the next split (their blocks are
// neighbours in memory). More: all splits of a head, then the next head (its state stays in the cache).
struct Unit {
    int head, split;
};
OCTAVO_INLINE Unit unit_at(const Shape& s, const Tile& t, int64_t u) {
    if (t.queries == 1) return {int(u % s.kv_heads), t.first_split + int(u / s.kv_heads)};
    return {int(u / t.splits), t.first_split + int(u % t.splits)};
}

OCTAVO_INLINE void split_range(const Tile& t, int split, int* first, int* count) {
    const int a = split * SPLIT_GROUPS, b = a + SPLIT_GROUPS - 1;
    *first = t.first_group > a ? t.first_group : a;
    *count = (t.last_group < b ? t.last_group : b) - *first + 1;
}

OCTAVO_INLINE int64_t unit_cost(const Shape& s, const Tile& t, int split) {
    int first, count;
    split_range(t, split, &first, &count);
    return count * group_cost(s, t.queries);
}

// A unit belongs to the thread in whose share of the total its middle lies.
OCTAVO_INLINE int owner_of(int64_t start, int64_t cost, int64_t total, int threads) {
    return int((2 * start + cost) * threads / (2 * total));
}

// ---- one unit -------------------------------------------------------------------------------------------

struct Result {
    float* sums;  // [rows][head_dim]
    float* maxima;
    float* totals;
};
OCTAVO_INLINE Result result_at(const Shape& s, float* slot) {
    float* maxima = slot + int64_t(s.rows()) * s.head_dim;
    return {slot, maxima, maxima + s.rows()};
}

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

// Where the keys and values of a unit lie, by groups of 16 positions.
struct Lines {
    int first_group, groups;
    int64_t half;  // bytes of K, or of V, of a head in a block
    const char *k[SPLIT_GROUPS], *v[SPLIT_GROUPS];
};
template <class D>
OCTAVO_INLINE void find_lines(const Step& step, const Shape& s, const Tile& t, Unit unit, Lines* lines) {
    const int head_dim = s.head_dim, block_size = step.block_size;
    split_range(t, unit.split, &lines->first_group, &lines->groups);
    lines->half = int64_t(block_size) * head_dim * (4 / D::PER);
    const int32_t* table = step.block_tables + s.group * step.group_stride + t.row * step.table_width;
    const char* head_base = step.kv + (int64_t(s.index) * s.kv_heads + unit.head) * 2 * lines->half;
    for (int g = 0; g < lines->groups; ++g) {
        const int position = (lines->first_group + g) * LANES, slot = position % block_size;
        const char* block = head_base + table[position / block_size] * step.block_bytes;
        lines->k[g] = block + int64_t(slot) * 4;
        lines->v[g] = block + lines->half + int64_t(slot) * head_dim * (4 / D::PER);
    }
}

// `next_tile` is the tile that this thread takes up after a unit that ends a line of heads, or null.
template <class D>
void run_unit(const Op& op, const Step& step, const Shape& s, const Tile& t, Unit unit, const Tile* next_tile, char* scratch, Result out) {
    using A = typename D::A;
    const int rows = t.queries * s.per_kv, head_dim = s.head_dim, block_size = step.block_size;
    Lines lines;
    find_lines<D>(step, s, t, unit, &lines);
    const int groups = lines.groups, first_group = lines.first_group;

    // Decode waits for memory, so V is fetched while K is read, and while V is read K of the unit to follow.
    const bool decode = t.queries == 1;
    const char *next_v[SPLIT_GROUPS], *next_k[SPLIT_GROUPS];
    const char* const* after_v = nullptr;
    if (decode) {
        Lines following;
        if (unit.head + 1 < s.kv_heads) {
            for (int g = 0; g < groups; ++g) next_k[g] = lines.v[g] + lines.half;
            after_v = next_k;
        } else if (unit.split + 1 < t.first_split + t.splits || next_tile) {
            const bool same = unit.split + 1 < t.first_split + t.splits;
            find_lines<D>(step, s, same ? t : *next_tile, {0, same ? unit.split + 1 : next_tile->first_split}, &following);
            for (int g = 0; g < groups; ++g) next_k[g] = following.v[g < following.groups ? g : following.groups - 1] - lines.half;
            after_v = next_k;
        }
        for (int g = 0; g < groups; ++g) next_v[g] = lines.k[g] + lines.half;
    }

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
            tiles_of<D>(n).qk[m - 1]({q + r * q_stride, q_stride, lines.k + g, int64_t(block_size) * 4, head_dim, 0, decode && c == 0 ? next_v + g : nullptr,
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

// ---- merging splits -------------------------------------------------------------------------------------

OCTAVO_INLINE float exp2_of(float x) {
    alignas(64) float t[LANES];
    store(t, exp2v(set1(x)));
    return t[0];
}

// state = state + part, row by row. A row that sees nothing of the part is left alone.
void merge(const Shape& s, const Tile& t, Result state, Result part) {
    const int rows = t.queries * s.per_kv;
    for (int r = 0; r < rows; ++r) {
        const float m = part.maxima[r], old = state.maxima[r];
        if (m == NEG_INF) continue;
        float* to = state.sums + int64_t(r) * s.head_dim;
        const float* from = part.sums + int64_t(r) * s.head_dim;
        if (old == NEG_INF) {
            std::memcpy(to, from, size_t(s.head_dim) * 4);
            state.maxima[r] = m, state.totals[r] = part.totals[r];
            continue;
        }
        const float top = m > old ? m : old;
        const float a = exp2_of(old - top), b = exp2_of(m - top);
        const V va = set1(a), vb = set1(b);
        for (int d = 0; d < s.head_dim; d += LANES) store(to + d, fma(load(from + d), vb, load(to + d) * va));
        const float x = state.totals[r] * a, y = part.totals[r] * b;
        state.totals[r] = x + y;
        state.maxima[r] = top;
    }
}

// Divides by the sum (with the head's sink, if it has one) and writes the output.
void finish(const Op& op, const Shape& s, const Tile& t, int head, Result state) {
    const auto* sinks = static_cast<const float*>(op.w[0]);
    const int rows = t.queries * s.per_kv;
    for (int r = 0; r < rows; ++r) {
        const int h = head * s.per_kv + r % s.per_kv;
        float factor = 1.0f, total = state.totals[r];
        if (sinks) {
            const float sink = sinks[h] * LOG2E, m = state.maxima[r], top = sink > m ? sink : m;
            factor = exp2_of(m - top);
            const float x = total * factor;
            total = x + exp2_of(sink - top);
        }
        const V inv = set1(factor / total), zero = set1(0.0f);
        const float* from = state.sums + int64_t(r) * s.head_dim;
        float* y = op.out[0].f32(t.token + r / s.per_kv) + int64_t(h) * s.head_dim;
        // + 0 turns -0 into 0: the only trace that masked keys could leave.
        for (int d = 0; d < s.head_dim; d += LANES) store(y + d, load(from + d) * inv + zero);
    }
}

// ---- the op ---------------------------------------------------------------------------------------------

struct Walk {  // over the tiles of a step, in line
    const Shape& s;
    const Step& step;
    int64_t row = 0;
    int token = 0;
    bool next(Tile* t) {
        while (row < step.R && token >= step.row_starts[row + 1]) ++row;
        if (row >= step.R) return false;
        *t = tile_at(s, step, row, token);
        token += t->queries;
        return true;
    }
};

template <class D>
void attend_as(const Op& op, const Step& step, const Ctx& ctx) {
    const Shape s = shape_of(op);
    auto* space = const_cast<AttendSpace*>(static_cast<const AttendSpace*>(op.w[1]));
    int64_t total = 0;
    Tile t;
    for (Walk walk{s, step}; walk.next(&t);) total += t.cost * s.kv_heads;
    if (total == 0) return;
    const int64_t state_floats = s.slot_floats * s.kv_heads;
    float* scratch_slot = reinterpret_cast<float*>(ctx.scratch);  // the unit at hand
    char* scratch = ctx.scratch + s.slot_floats * 4;
    float* own = reinterpret_cast<float*>(space->own(ctx.tid, size_t(state_floats + s.slot_floats) * 4));

    Tile open;               // my last tile, if other threads have splits of my heads
    int64_t open_start = 0;
    bool has_open = false, shared_out = false;
    int64_t start = 0;       // cost of all tiles before
    for (Walk walk{s, step}; walk.next(&t); start += t.cost * s.kv_heads) {
        const int64_t cost = t.cost * s.kv_heads, units = int64_t(t.splits) * s.kv_heads;
        const int first_owner = owner_of(start, unit_cost(s, t, t.first_split), total, ctx.n);
        const int last_owner = owner_of(start + cost - unit_cost(s, t, t.first_split + t.splits - 1),
                                        unit_cost(s, t, t.first_split + t.splits - 1), total, ctx.n);
        if (first_owner != last_owner) shared_out = true;
        if (ctx.tid < first_owner || ctx.tid > last_owner) continue;
        if (first_owner < ctx.tid) {  // my first tile: room for splits of heads that others finish
            own = reinterpret_cast<float*>(space->own(ctx.tid, size_t(state_floats + units * s.slot_floats) * 4));
        }
        Tile following;
        Walk peek = walk;
        const Tile* next_tile = t.queries == 1 && ctx.tid == last_owner && peek.next(&following) ? &following : nullptr;
        int64_t at = start, my_first = -1;
        bool mine[ATTEND_MAX_KV_HEADS] = {};  // heads whose first split is mine
        bool unfinished = false;
        for (int64_t u = 0; u < units; ++u) {
            const Unit unit = unit_at(s, t, u);
            const int64_t c = unit_cost(s, t, unit.split);
            const int owner = owner_of(at, c, total, ctx.n);
            at += c;
            if (owner != ctx.tid) {
                if (mine[unit.head]) unfinished = true;
                continue;
            }
            if (my_first < 0) my_first = u;
            if (unit.split == t.first_split) mine[unit.head] = true;
            if (!mine[unit.head]) {
                run_unit<D>(op, step, s, t, unit, next_tile, scratch, result_at(s, own + state_floats + (u - my_first) * s.slot_floats));
                continue;
            }
            const Result state = result_at(s, own + unit.head * s.slot_floats), part = result_at(s, scratch_slot);
            if (unit.split == t.first_split) {
                run_unit<D>(op, step, s, t, unit, next_tile, scratch, state);
            } else {
                run_unit<D>(op, step, s, t, unit, next_tile, scratch, part);
                merge(s, t, state, part);
            }
            if (unit.split == t.first_split + t.splits - 1) finish(op, s, t, unit.head, state);
        }
        if (unfinished) open = t, open_start = start, has_open = true;
    }
    if (!shared_out) return;  // the same for all threads
    ctx.barrier();
    if (!has_open) return;

    const int64_t units = int64_t(open.splits) * s.kv_heads;
    int64_t at = open_start, first_of_owner = 0;
    int last_owner = -1;
    bool mine[ATTEND_MAX_KV_HEADS] = {};
    for (int64_t u = 0; u < units; ++u) {
        const Unit unit = unit_at(s, open, u);
        const int64_t c = unit_cost(s, open, unit.split);
        const int owner = owner_of(at, c, total, ctx.n);
        at += c;
        if (owner != last_owner) last_owner = owner, first_of_owner = u;
        if (owner == ctx.tid) {
            if (unit.split == open.first_split) mine[unit.head] = true;
            continue;
        }
        if (!mine[unit.head]) continue;
        auto* slot = reinterpret_cast<float*>(const_cast<char*>(space->of(owner))) + state_floats + (u - first_of_owner) * s.slot_floats;
        const Result state = result_at(s, own + unit.head * s.slot_floats);
        merge(s, open, state, result_at(s, slot));
        if (unit.split == open.first_split + open.splits - 1) finish(op, s, open, unit.head, state);
    }
}

template <class BF16>
void attend(const Op& op, const Step& step, const Ctx& ctx) {
    if (op.i[KV_DTYPE] == KV_BF16) attend_as<BF16>(op, step, ctx);
    else attend_as<F32>(op, step, ctx);
}

constexpr AttentionKernels PLAIN = {attend<OpenBF16>};
#if defined(__AVX512BF16__)
constexpr AttentionKernels WITH_BF16_DOT = {attend<DotBF16>};
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
