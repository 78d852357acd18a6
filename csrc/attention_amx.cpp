// Attention over a bf16 cache on the tile unit of Intel's CPUs (attention_parts.h says how a step is cut up). Compiled
// once, as set avx512_amx. Other caches and odd head sizes go to the vectors of avx512_bf16.
//
// Every element of a tile product comes from its own row, column and starting sum in one order (linear_amx.cpp), so a
// row's bits do not depend on its tile. Depth: scores take the head in pieces of 32, sums of V take positions in pairs
// of groups, that is 32 positions aligned to position 0; where a tile does not hold one of the pair, its V is zero.
//
// One query token computes through the same instructions as a prompt's tiles.
#define OCTAVO_ATTEND_SPLIT 512  // scores of a pass stay in the first-level cache
#include "attention_parts.h"

#include "tiles.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int TALL = 32;           // rows of a pass: two tiles
constexpr int PAIR = 2 * LANES;    // positions

// How the rows of a unit are cut into passes of one height, the last filled up.
struct Passes {
    int count, height, rows;  // height: of a tile; rows: of a pass
    explicit Passes(int n) {
        count = (n + TALL - 1) / TALL;
        const int each = (n + count - 1) / count;
        height = each > 16 ? (each + 1) / 2 : each;
        rows = each > 16 ? 2 * height : height;
    }
    bool two() const { return rows > height; }
};

// 2^x for x <= 0, not below 2^-126, with a relative error of 4e-6: the result is rounded to bf16. 1 at 0; NaN stays.
OCTAVO_INLINE V exp2_short(V x) {
    const V c = max(set1(-126.0f), x);  // in this order a NaN passes
    const V f = {_mm512_reduce_ps(c.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
    V p = set1(0.013555745157895446f);
    p = fma(p, f, set1(0.05203237225948134f));
    p = fma(p, f, set1(0.24137976174940962f));
    p = fma(p, f, set1(0.6930321208332135f));
    p = fma(p, f, set1(1.0f));
    return {_mm512_scalef_ps(p.v, c.v)};  // takes the floor of its exponent
}

// What a row sees of its scores [from, to), all of it in pairs of vectors: [first, last), wholly in [inner, outer).
struct Seen {
    int from, to, first, last, inner, outer;
    Seen(int begin, int end, int first_key, int last_key) : from(begin), to(end), first(first_key), last(last_key) {
        if (last < first) last = first;
        inner = first <= from ? from : (first + PAIR - 1) / PAIR * PAIR;
        outer = last / PAIR * PAIR;
        inner = inner < to ? inner : to;
        outer = outer > to ? to : outer < inner ? inner : outer;
    }
    __mmask16 at(int i) const {
        uint32_t mask = 0xffff;
        if (i < first) mask = first - i >= LANES ? 0 : mask << (first - i) & 0xffff;
        if (i + LANES > last) mask = last <= i ? 0 : mask & ((1u << (last - i)) - 1);
        return __mmask16(mask);
    }
};

// The greatest score that a row sees; caps scores in place.
OCTAVO_INLINE float highest(float* s, const Seen& seen, float cap) {
    V top = set1(NEG_INF), other = top;
    if (cap > 0)
        for (int i = seen.from; i < seen.to; i += LANES) store(s + i, set1(cap * LOG2E) * tanhv(load(s + i)));
    const auto edge = [&](int i) { top = max(top, select(seen.at(i), load(s + i), set1(NEG_INF))); };
    for (int i = seen.from; i < seen.inner; i += LANES) edge(i);
    for (int i = seen.inner; i < seen.outer; i += PAIR) top = max(top, load(s + i)), other = max(other, load(s + i + LANES));
    for (int i = seen.outer; i < seen.to; i += LANES) edge(i);
    return max_lanes(max(top, other));
}

// Turns a row's scores into probabilities in place, as bf16 from the start of the row on: exactly zero where it does
// not see. Returns their sum before rounding, in 16 lanes and two chains, by position.
OCTAVO_INLINE V to_probabilities(float* s, const Seen& seen, float maximum) {
    const V shift = set1(maximum == NEG_INF ? 0.0f : maximum);
    auto* p = reinterpret_cast<uint16_t*>(s);
    V sum = set1(0.0f), other = sum;
    const auto put = [&](int i, V a, V b) {
        sum = sum + a, other = other + b;
        _mm512_storeu_si512(p + i, (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v));
    };
    const auto edge = [&](int i) {
        const V a = exp2_short(load(s + i) - shift), b = exp2_short(load(s + i + LANES) - shift);
        put(i, {_mm512_maskz_mov_ps(seen.at(i), a.v)}, {_mm512_maskz_mov_ps(seen.at(i + LANES), b.v)});
    };
    for (int i = seen.from; i < seen.inner; i += PAIR) edge(i);
    for (int i = seen.inner; i < seen.outer; i += PAIR) put(i, exp2_short(load(s + i) - shift), exp2_short(load(s + i + LANES) - shift));
    for (int i = seen.outer; i < seen.to; i += PAIR) edge(i);
    return sum + other;
}

// Tiles 0..3 hold sums, 4 and 5 rows of Q or P, 6 and 7 K or V.

template <bool TWO>
OCTAVO_INLINE void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if (TWO) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

// Scores of a pass with one group of keys, or with a pair (`b` may be null).
template <bool TWO>
OCTAVO_INLINE void qk(const uint16_t* q, int64_t q_stride, int height, const char* a, const char* b, int64_t k_stride,
                      int head_dim, float* s) {
    clear_sums<TWO>();
    for (int d = 0; d < head_dim; d += PAIR) {
        const int64_t at = d / 2 * k_stride;
        _tile_loadd(6, a + at, k_stride);
        _tile_loadd(4, q + d, q_stride * 2);
        if (TWO) _tile_loadd(5, q + height * q_stride + d, q_stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        if (TWO) _tile_dpbf16ps(2, 5, 6);
        if (!b) continue;
        _tile_loadd(7, b + at, k_stride);
        _tile_dpbf16ps(1, 4, 7);
        if (TWO) _tile_dpbf16ps(3, 5, 7);
    }
    constexpr int64_t STRIDE = S_STRIDE * 4;
    _tile_stored(0, s, STRIDE);
    if (TWO) _tile_stored(2, s + height * S_STRIDE, STRIDE);
    if (!b) return;
    _tile_stored(1, s + LANES, STRIDE);
    if (TWO) _tile_stored(3, s + height * S_STRIDE + LANES, STRIDE);
}

// Sums of 32 columns of V over pairs of groups, for two tiles of rows.
OCTAVO_INLINE void pv(const char* p, int height, const char* const* v, int64_t v_stride, int64_t column, int pairs,
                      float* y, int64_t y_stride) {
    constexpr int64_t P_STRIDE = S_STRIDE * 4;
    clear_sums<true>();
    for (int j = 0; j < pairs; j++, p += PAIR * 2) {
        _tile_loadd(6, v[j] + column, v_stride);
        _tile_loadd(4, p, P_STRIDE);
        _tile_loadd(5, p + height * P_STRIDE, P_STRIDE);
        _tile_loadd(7, v[j] + column + 64, v_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, y, y_stride * 4);
    _tile_stored(1, y + LANES, y_stride * 4);
    _tile_stored(2, y + height * y_stride, y_stride * 4);
    _tile_stored(3, y + height * y_stride + LANES, y_stride * 4);
}

// The same of 32 or 64 columns for one tile of rows; `ready(j)` is called before pair j is read.
template <bool FOUR, class Ready>
OCTAVO_INLINE void pv_low(const char* p, const char* const* v, int64_t v_stride, int64_t column, int pairs, float* y,
                          int64_t y_stride, const Ready& ready) {
    clear_sums<true>();
    for (int j = 0; j < pairs; j++, p += PAIR * 2) {
        ready(j);
        _tile_loadd(4, p, S_STRIDE * 4);
        _tile_loadd(6, v[j] + column, v_stride);
        _tile_loadd(7, v[j] + column + 64, v_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!FOUR) continue;
        _tile_loadd(6, v[j] + column + 128, v_stride);
        _tile_loadd(7, v[j] + column + 192, v_stride);
        _tile_dpbf16ps(2, 4, 6);
        _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, y, y_stride * 4);
    _tile_stored(1, y + LANES, y_stride * 4);
    if (!FOUR) return;
    _tile_stored(2, y + 2 * LANES, y_stride * 4);
    _tile_stored(3, y + 3 * LANES, y_stride * 4);
}

OCTAVO_INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

constexpr int COPIED_AHEAD = 2;  // pairs of V

class TileUnit {
  public:
    static constexpr int PER = 2, ROWS = 96, ROWS_STEP = TALL;

    TileUnit() = default;
    ~TileUnit() {
        if (height_) _tile_release();  // so that the kernel has no tiles to save when threads switch
    }
    TileUnit(const TileUnit&) = delete;
    TileUnit& operator=(const TileUnit&) = delete;

    void unit(const Op& op, const Step& step, const Shape& s, const Tile& t, Unit unit, const Tile* next_tile, char* scratch, Result out) {
        const int rows = t.queries * s.per_kv;
        const Passes passes(rows);
        configure(passes);
        find_lines<TileUnit>(step, s, t, unit, &lines_);
        const bool decode = t.queries == 1;
        if (decode) find_ahead<TileUnit>(step, s, t, unit, next_tile, lines_, &ahead_);
        scores_ = reinterpret_cast<float*>(scratch);
        q_ = reinterpret_cast<uint16_t*>(scores_ + TALL * S_STRIDE);
        q_stride_ = s.head_dim + PAIR;
        char* copies = reinterpret_cast<char*>(q_) + int64_t(s.rows()) * q_stride_ * 2;

        const V scale = set1(s.scale);
        for (int r = 0; r < passes.count * passes.rows; ++r) {
            uint16_t* to = q_ + r * q_stride_;
            if (r >= rows) {
                std::memset(to, 0, size_t(s.head_dim) * 2);
                continue;
            }
            const float* x = op.in[0].f32(t.token + r / s.per_kv) + (int64_t(unit.head) * s.per_kv + r % s.per_kv) * s.head_dim;
            for (int d = 0; d < s.head_dim; d += PAIR)
                _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh((load(x + d + LANES) * scale).v, (load(x + d) * scale).v));
        }
        bool have_v = false;
        for (int c = 0; c < passes.count; ++c) {
            const int from = c * passes.rows, n = rows - from < passes.rows ? rows - from : passes.rows;
            if (n <= 0) break;
            const Result part = {out.sums + int64_t(from) * s.head_dim, out.maxima + from, out.totals + from};
            const int first = first_key(s, place_of(step, t.row, t.token + from / s.per_kv)) / LANES;
            const int last = place_of(step, t.row, t.token + (from + n - 1) / s.per_kv) / LANES;
            const int low = first > lines_.first_group ? first : lines_.first_group, end = lines_.first_group + lines_.groups - 1;
            const int high = last < end ? last : end;
            if (low > high) {  // no row of the pass sees any key of the split
                std::memset(part.sums, 0, size_t(n) * s.head_dim * 4);
                for (int r = 0; r < n; ++r) part.maxima[r] = NEG_INF, part.totals[r] = 0;
                continue;
            }
            const Pairs pairs = {low / 2 - lines_.first_group / 2, high / 2 - lines_.first_group / 2 + 1};
            score(step, s, passes, from, pairs, decode && c == 0);
            probabilities(step, s, t, from, n, pairs, part);
            const char* p = reinterpret_cast<const char*>(scores_) + int64_t(pairs.first) * PAIR * 2;
            const int64_t v_stride = int64_t(s.head_dim) * 4;
            const int count = pairs.end - pairs.first;
            if (!passes.two()) {  // few rows: a pair of V is read while it is warm from copying
                const char* const* next = decode && ahead_.has_k ? ahead_.k : nullptr;
                for (int d = 0; d < s.head_dim; d += 2 * PAIR) {
                    const auto ready = [&](int j) {
                        if (d > 0) return;
                        // Some pairs ahead: a tile cannot be loaded from stores that are still on their way.
                        for (int k = j ? j + COPIED_AHEAD : 0; k <= j + COPIED_AHEAD && k < count; ++k) gather_v(step, s, copies, pairs.first + k, next);
                    };
                    const auto run = s.head_dim - d > PAIR ? pv_low<true, decltype(ready)> : pv_low<false, decltype(ready)>;
                    run(p, v_ + pairs.first, v_stride, int64_t(d) * 4, count, part.sums + d, s.head_dim, ready);
                }
                continue;
            }
            if (!have_v)
                for (int j = 0; j < (lines_.first_group % 2 + lines_.groups + 1) / 2; ++j) gather_v(step, s, copies, j, nullptr);
            have_v = true;
            for (int d = 0; d < s.head_dim; d += PAIR)
                pv(p, passes.height, v_ + pairs.first, v_stride, int64_t(d) * 4, count, part.sums + d, s.head_dim);
        }
    }

  private:
    struct Pairs {  // of groups, counted from the one that the first group of the unit belongs to
        int first, end;
    };

    void configure(const Passes& p) {
        if (p.height == height_) return;
        height_ = p.height;
        TileConfig c;
        for (int tile = 0; tile < 8; tile++) {
            c.rows[tile] = uint8_t(tile >= 6 ? 16 : p.height);
            c.row_bytes[tile] = 64;
        }
        load_config(c);
    }

    // Index in lines_ of a group counted from the even one at or below the first.
    int line(int group) const { return group - lines_.first_group % 2; }
    bool present(int group) const { return line(group) >= 0 && line(group) < lines_.groups; }

    void score(const Step& step, const Shape& s, const Passes& passes, int from, Pairs pairs, bool fetch) {
        const uint16_t* q = q_ + from * q_stride_;
        const int64_t stride = int64_t(step.block_size) * 4;
        for (int j = pairs.first; j < pairs.end; ++j) {
            const bool one = present(2 * j), other = present(2 * j + 1);
            if (fetch)
                for (int g = line(2 * j) + !one; g <= line(2 * j) + other; ++g)
                    for (int64_t at = 0; at < int64_t(s.head_dim) * LANES * 2; at += 64) __builtin_prefetch(ahead_.v[g] + at / 64 * stride, 0, 2);
            const char* a = lines_.k[line(2 * j) + !one];
            const char* b = one && other ? lines_.k[line(2 * j + 1)] : nullptr;
            float* to = scores_ + j * PAIR + (one ? 0 : LANES);
            if (passes.two()) qk<true>(q, q_stride_, passes.height, a, b, stride, s.head_dim, to);
            else qk<false>(q, q_stride_, passes.height, a, b, stride, s.head_dim, to);
        }
    }

    void probabilities(const Step& step, const Shape& s, const Tile& t, int from, int n, Pairs pairs, Result part) {
        const int start = lines_.first_group / 2 * PAIR, low = pairs.first * PAIR, high = pairs.end * PAIR;
        // What a tile does not hold lies before its first key, or behind its last.
        const int known = (lines_.first_group % 2) * LANES, end = known + lines_.groups * LANES;
        const auto seen = [&](int r) {
            const int position = place_of(step, t.row, t.token + (from + r) / s.per_kv);
            const int first = first_key(s, position) - start, last = position + 1 - start;
            return Seen(low, high, first < known ? known : first, last < end ? last : end);
        };
        // All rows at each stage, since a row alone would wait for its own lanes.
        for (int r = 0; r < n; ++r) part.maxima[r] = highest(scores_ + int64_t(r) * S_STRIDE, seen(r), s.cap);
        for (int r = 0; r < n; ++r) store(sums_ + r * LANES, to_probabilities(scores_ + int64_t(r) * S_STRIDE, seen(r), part.maxima[r]));
        for (int r = 0; r < n; ++r) part.totals[r] = sum_lanes(load(sums_ + r * LANES));
    }

    // Finds pair j of groups of V; where the two do not follow each other in memory, they are copied so that they do.
    void gather_v(const Step& step, const Shape& s, char* copies, int j, const char* const* next) {
        const int64_t bytes = int64_t(s.head_dim) * LANES * 2, k_stride = int64_t(step.block_size) * 4;
        const bool one = present(2 * j), other = present(2 * j + 1);
        if (next)
            for (int g = line(2 * j) + !one; g <= line(2 * j) + other; ++g)
                for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(next[g] + at / 64 * k_stride, 0, 2);
        const char *a = one ? lines_.v[line(2 * j)] : nullptr, *b = other ? lines_.v[line(2 * j + 1)] : nullptr;
        if (a && b == a + bytes) {
            v_[j] = a;
            return;
        }
        char* to = copies + j * 2 * bytes;
        v_[j] = to;
        copy(to, a, bytes);
        copy(to + bytes, b, bytes);
    }
    static void copy(char* to, const char* from, int64_t bytes) {
        for (int64_t at = 0; at < bytes; at += 64)
            _mm512_storeu_si512(to + at, from ? _mm512_loadu_si512(from + at) : _mm512_setzero_si512());
    }

    int height_ = 0;  // of the tiles of rows, as configured
    Lines lines_;
    Ahead ahead_;
    alignas(64) float sums_[TALL * LANES];
    float* scores_ = nullptr;    // [TALL][S_STRIDE]
    uint16_t* q_ = nullptr;      // [rows][q_stride_]
    int64_t q_stride_ = 0;
    const char* v_[SPLIT_GROUPS / 2];
};

void attend(const Op& op, const Step& step, const Ctx& ctx) {
    if (op.i[KV_DTYPE] == KV_BF16 && op.i[KV_HEAD_DIM] % PAIR == 0) attend_as<TileUnit>(op, step, ctx);
    else avx512_bf16::attention_kernels().attend(op, step, ctx);
}

size_t scratch_bytes(int64_t per_kv, int64_t head_dim) {
    const int64_t rows = round_up(per_kv > TileUnit::ROWS ? per_kv : TileUnit::ROWS, TALL);
    const int64_t slot = (rows * (head_dim + 2) + LANES) * 4;
    const int64_t mine = slot + TALL * S_STRIDE * 4 + rows * (head_dim + PAIR) * 2 + SPLIT * head_dim * 2 + 256;
    const int64_t other = int64_t(avx512_bf16::attention_kernels().scratch_bytes(per_kv, head_dim));
    return size_t(mine > other ? mine : other);
}

}  // namespace

const AttentionKernels& attention_kernels() {
    static const AttentionKernels kernels = {attend, scratch_bytes};
    return kernels;
}

}  // namespace octavo::OCTAVO_ISA
