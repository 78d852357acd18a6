// y = W x on packed weights, for one instruction set. A tile is BLOCK_COLS columns by up to R rows; the
// tile's sums stay in registers over all of K. Every sum is accumulated in the order of K (formats
// of 32 and 16 bits) or of its groups (int8), whatever R, the row's place or the thread.
#include "linear.h"

#include "int8_lanes.h"
#include "lanes.h"
#include "linear_parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

// ---------------------------------------------------------------------------------------------------
// Row tiles

using TileFn = void (*)(const LinearTask&, const char* w, int64_t block, int64_t row, Ahead);

// A block over all rows: tiles of almost equal height.
OCTAVO_INLINE void sweep(const LinearTask& task, const TileFn* tiles, int tallest, const char* w, const char* next,
                         int64_t next_bytes, int64_t block) {
    const int64_t count = (task.rows + tallest - 1) / tallest;
    const int64_t height = task.rows / count, taller = task.rows % count;
    // One tile: the block streams through, fetched at a fixed distance. Many: shares of the next block.
    const int64_t lines = (next_bytes + 63) / 64;
    const int64_t share = (lines + count - 1) / count;
    const int per_group = int((share + task.groups - 1) / task.groups);
    int64_t row = 0;
    for (int64_t t = 0; t < count; t++) {
        const int64_t h = height + (t < taller ? 1 : 0);
        const char* p = count == 1 ? w + FAR_AHEAD : next + t * int64_t(per_group) * task.groups * 64;
        tiles[h - 1](task, w, block, row, Ahead{p, per_group, count == 1});
        row += h;
    }
}

// Halves of a block (16 columns each) that a tile holds at once.
#if defined(__AVX512F__)
constexpr int H = 2;
constexpr int TALL_FLOAT = 12;
constexpr int TALL_INT = 6;
#elif defined(__AVX2__)
constexpr int H = 1;
constexpr int TALL_FLOAT = 5;
constexpr int TALL_INT = 3;
#elif defined(__ARM_NEON)
constexpr int H = 1;
constexpr int TALL_FLOAT = 5;
constexpr int TALL_INT = 4;
#else
constexpr int H = 1;
constexpr int TALL_FLOAT = 2;
constexpr int TALL_INT = 2;
#endif

// Runs `half(h, sums)` for the halves of a block that fit the registers at once, then finishes them.
template <int R, class Half>
OCTAVO_INLINE void run_halves(const LinearTask& task, int64_t block, int64_t row, Half half) {
    alignas(64) float sums[R * BLOCK_COLS];
    for (int h = 0; h < 2; h += H) half(h, sums + 16 * h);
    finish(task.out, sums, R, row, block);
}

// ---------------------------------------------------------------------------------------------------
// f32 and f16 weights, f32 operand: one fused multiply-add per k

template <bool F16>
OCTAVO_INLINE V load_column(const char* w, int h) {
    if constexpr (F16) return load_f16(reinterpret_cast<const uint16_t*>(w) + 16 * h);
    else return load(reinterpret_cast<const float*>(w) + 16 * h);
}

template <bool F16, int R>
void float_tile(const LinearTask& task, const char* w, int64_t block, int64_t row, Ahead ahead) {
    constexpr int64_t STEP = BLOCK_COLS * (F16 ? 2 : 4);
    run_halves<R>(task, block, row, [&](int h0, float* out) __attribute__((always_inline)) {
        V sums[R][H];
        OCTAVO_UNROLL for (int i = 0; i < R; i++) OCTAVO_UNROLL for (int h = 0; h < H; h++) sums[i][h] = set1(0.0f);
        auto x = Rows<R>::make(task.x + row * task.x_stride, task.x_stride);
        const char* p = w;
        for (int64_t k0 = 0; k0 < task.cols; k0 += GROUP) {
            if (h0 == 0) fetch(ahead);
            const int64_t end = smaller(task.cols - k0, GROUP);
            for (int64_t k = 0; k < end; k++, p += STEP) {
                V column[H];
                OCTAVO_UNROLL for (int h = 0; h < H; h++) column[h] = load_column<F16>(p, h0 + h);
                OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                    V value = set1(read_f32(Rows<R>::row(x, i)));
                    OCTAVO_UNROLL for (int h = 0; h < H; h++) sums[i][h] = fma(column[h], value, sums[i][h]);
                }
                Rows<R>::advance(x, 4);
            }
        }
        OCTAVO_UNROLL for (int i = 0; i < R; i++) OCTAVO_UNROLL for (int h = 0; h < H; h++) store(out + i * BLOCK_COLS + 16 * h, sums[i][h]);
    });
}

// ---------------------------------------------------------------------------------------------------
// bf16 weights

#if defined(__AVX512BF16__)

// Pairs of k by the dot-product instruction, on an operand rounded to bf16.
template <int R>
void bf16_dot_tile(const LinearTask& task, const char* w, int64_t block, int64_t row, Ahead ahead) {
    __m512 a[R], b[R];
    OCTAVO_UNROLL for (int i = 0; i < R; i++) a[i] = b[i] = _mm512_setzero_ps();
    auto x = Rows<R>::make(task.x + row * task.x_stride, task.x_stride);
    const char* p = w;
    for (int64_t g = 0; g < task.groups; g++) {
        fetch(ahead);
        _Pragma("GCC unroll 4") for (int pair = 0; pair < GROUP / 2; pair++) {
            const __m512bh wa = (__m512bh)_mm512_loadu_si512(p + pair * 128);
            const __m512bh wb = (__m512bh)_mm512_loadu_si512(p + pair * 128 + 64);
            OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                const __m512bh value = (__m512bh)_mm512_set1_epi32(read_i32(Rows<R>::row(x, i) + pair * 4));
                a[i] = _mm512_dpbf16_ps(a[i], wa, value);
                b[i] = _mm512_dpbf16_ps(b[i], wb, value);
            }
        }
        p += GROUP * BLOCK_COLS * 2;
        Rows<R>::advance(x, GROUP * 2);
    }
    alignas(64) float sums[R * BLOCK_COLS];
    OCTAVO_UNROLL for (int i = 0; i < R; i++) store(sums + i * BLOCK_COLS, V{a[i]}), store(sums + i * BLOCK_COLS + 16, V{b[i]});
    finish(task.out, sums, R, row, block);
}

#endif

// On an f32 operand: two fused multiply-adds for a pair.
template <int R>
void bf16_tile(const LinearTask& task, const char* w, int64_t block, int64_t row, Ahead ahead) {
    run_halves<R>(task, block, row, [&](int h0, float* out) __attribute__((always_inline)) {
        V sums[R][H];
        OCTAVO_UNROLL for (int i = 0; i < R; i++) OCTAVO_UNROLL for (int h = 0; h < H; h++) sums[i][h] = set1(0.0f);
        auto x = Rows<R>::make(task.x + row * task.x_stride, task.x_stride);
        const char* p = w + 64 * h0;
        int64_t k = 0;
        for (; k + 2 <= task.cols; k += 2, p += 128) {
            if (h0 == 0 && k % GROUP == 0) fetch(ahead);
            V even[H], odd[H];
            OCTAVO_UNROLL for (int h = 0; h < H; h++) even[h] = load_even_bf16(p + 64 * h), odd[h] = load_odd_bf16(p + 64 * h);
            OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                V value = set1(read_f32(Rows<R>::row(x, i)));
                OCTAVO_UNROLL for (int h = 0; h < H; h++) sums[i][h] = fma(even[h], value, sums[i][h]);
            }
            OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                V value = set1(read_f32(Rows<R>::row(x, i) + 4));
                OCTAVO_UNROLL for (int h = 0; h < H; h++) sums[i][h] = fma(odd[h], value, sums[i][h]);
            }
            Rows<R>::advance(x, 8);
        }
        if (k < task.cols) {
            V even[H];
            OCTAVO_UNROLL for (int h = 0; h < H; h++) even[h] = load_even_bf16(p + 64 * h);
            OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                V value = set1(read_f32(Rows<R>::row(x, i)));
                OCTAVO_UNROLL for (int h = 0; h < H; h++) sums[i][h] = fma(even[h], value, sums[i][h]);
            }
        }
        OCTAVO_UNROLL for (int i = 0; i < R; i++) OCTAVO_UNROLL for (int h = 0; h < H; h++) store(out + i * BLOCK_COLS + 16 * h, sums[i][h]);
    });
}

// ---------------------------------------------------------------------------------------------------
// int8 operand: exact integer products of a group, then two or three float operations

template <Source S, int R>
void int_tile(const LinearTask& task, const char* w, int64_t block, int64_t row, Ahead ahead) {
    run_halves<R>(task, block, row, [&](int h0, float* out) __attribute__((always_inline)) {
        V sums[R][H];
        OCTAVO_UNROLL for (int i = 0; i < R; i++) OCTAVO_UNROLL for (int h = 0; h < H; h++) sums[i][h] = set1(0.0f);
        auto x = Rows<R>::make(task.x + row * task.x_stride, task.x_stride);
        auto scales = Rows<R>::make(task.x + row * task.x_stride + task.groups * GROUP, task.x_stride);
        const char* record = w;
        for (int64_t g = 0; g < task.groups; g++) {
            if (h0 == 0) fetch(ahead);
            Sums whole[R][H];
            OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                const auto& scale = *reinterpret_cast<const GroupScale*>(Rows<R>::row(scales, i));
                OCTAVO_UNROLL for (int h = 0; h < H; h++) whole[i][h] = begin<S>(scale);
            }
            const char* p = record + head_bytes(S) + 64 * h0;
            if constexpr (S == FROM_W4) {
                _Pragma("GCC unroll 4") for (int pair = 0; pair < GROUP / 8; pair++) {
                    Quad low[H], high[H];
                    OCTAVO_UNROLL for (int h = 0; h < H; h++) split_pair(p + pair * 128 + 64 * h, low[h], high[h]);
                    OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                        const Value v = load_value(Rows<R>::row(x, i) + pair * 8);
                        OCTAVO_UNROLL for (int h = 0; h < H; h++) accumulate<S>(whole[i][h], low[h], v);
                    }
                    OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                        const Value v = load_value(Rows<R>::row(x, i) + pair * 8 + 4);
                        OCTAVO_UNROLL for (int h = 0; h < H; h++) accumulate<S>(whole[i][h], high[h], v);
                    }
                }
            } else {
                _Pragma("GCC unroll 8") for (int quad = 0; quad < GROUP / 4; quad++) {
                    Quad q[H];
                    OCTAVO_UNROLL for (int h = 0; h < H; h++) q[h] = load_quad<S>(p + quad * 128 + 64 * h);
                    OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                        const Value v = load_value(Rows<R>::row(x, i) + quad * 4);
                        OCTAVO_UNROLL for (int h = 0; h < H; h++) accumulate<S>(whole[i][h], q[h], v);
                    }
                }
            }
            V scale[H], minimum[H];
            OCTAVO_UNROLL for (int h = 0; h < H; h++) {
                scale[h] = load_scale<S>(record, 0, h0 + h);
                if constexpr (S != FROM_W8) minimum[h] = load_scale<S>(record, 1, h0 + h);
            }
            OCTAVO_UNROLL for (int i = 0; i < R; i++) {
                const auto& group = *reinterpret_cast<const GroupScale*>(Rows<R>::row(scales, i));
                OCTAVO_UNROLL for (int h = 0; h < H; h++) {
                    sums[i][h] = fma(scaled<S>(whole[i][h], group), scale[h], sums[i][h]);
                    if constexpr (S != FROM_W8) sums[i][h] = fma(minimum[h], set1(group.sum), sums[i][h]);
                }
            }
            record += record_bytes(S);
            Rows<R>::advance(x, GROUP);
            Rows<R>::advance(scales, sizeof(GroupScale));
        }
        OCTAVO_UNROLL for (int i = 0; i < R; i++) OCTAVO_UNROLL for (int h = 0; h < H; h++) store(out + i * BLOCK_COLS + 16 * h, sums[i][h]);
    });
}

void expand_w4(const char* packed, int64_t groups, char* out) {
    for (int64_t g = 0; g < groups; g++, packed += W4_RECORD, out += EXPANDED_RECORD) {
        for (int which = 0; which < 2; which++)
            for (int h = 0; h < 2; h++)
                store(reinterpret_cast<float*>(out) + which * BLOCK_COLS + 16 * h, load_scale<FROM_W4>(packed, which, h));
        const char* from = packed + head_bytes(FROM_W4);
        char* to = out + head_bytes(FROM_EXPANDED_W4);
        for (int pair = 0; pair < GROUP / 8; pair++, from += 128, to += 256)
            for (int i = 0; i < 128; i++) {
                const uint8_t byte = uint8_t(from[i]);
                to[i] = char(byte & 15);
                to[i + 128] = char(byte >> 4);
            }
    }
}

// ---------------------------------------------------------------------------------------------------
// Entry points

template <int R> void f32_rows(const LinearTask& t, const char* w, int64_t b, int64_t r, Ahead a) { float_tile<false, R>(t, w, b, r, a); }
template <int R> void f16_rows(const LinearTask& t, const char* w, int64_t b, int64_t r, Ahead a) { float_tile<true, R>(t, w, b, r, a); }
template <int R> void w8_rows(const LinearTask& t, const char* w, int64_t b, int64_t r, Ahead a) { int_tile<FROM_W8, R>(t, w, b, r, a); }
template <int R> void w4_rows(const LinearTask& t, const char* w, int64_t b, int64_t r, Ahead a) { int_tile<FROM_W4, R>(t, w, b, r, a); }
template <int R> void w4x_rows(const LinearTask& t, const char* w, int64_t b, int64_t r, Ahead a) { int_tile<FROM_EXPANDED_W4, R>(t, w, b, r, a); }

#if defined(__AVX512F__)
#define OCTAVO_FLOAT_TILES(f) {f<1>, f<2>, f<3>, f<4>, f<5>, f<6>, f<7>, f<8>, f<9>, f<10>, f<11>, f<12>}
#define OCTAVO_INT_TILES(f) {f<1>, f<2>, f<3>, f<4>, f<5>, f<6>}
#elif defined(__AVX2__)
#define OCTAVO_FLOAT_TILES(f) {f<1>, f<2>, f<3>, f<4>, f<5>}
#define OCTAVO_INT_TILES(f) {f<1>, f<2>, f<3>}
#elif defined(__ARM_NEON)
#define OCTAVO_FLOAT_TILES(f) {f<1>, f<2>, f<3>, f<4>, f<5>}
#define OCTAVO_INT_TILES(f) {f<1>, f<2>, f<3>, f<4>}
#else
#define OCTAVO_FLOAT_TILES(f) {f<1>, f<2>}
#define OCTAVO_INT_TILES(f) {f<1>, f<2>}
#endif

const TileFn F32_TILES[TALL_FLOAT] = OCTAVO_FLOAT_TILES(f32_rows);
const TileFn F16_TILES[TALL_FLOAT] = OCTAVO_FLOAT_TILES(f16_rows);
const TileFn BF16_TILES[TALL_FLOAT] = OCTAVO_FLOAT_TILES(bf16_tile);
#if defined(__AVX512BF16__)
const TileFn BF16_DOT_TILES[TALL_FLOAT] = OCTAVO_FLOAT_TILES(bf16_dot_tile);
#endif
const TileFn W8_TILES[TALL_INT] = OCTAVO_INT_TILES(w8_rows);
const TileFn W4_TILES[TALL_INT] = OCTAVO_INT_TILES(w4_rows);
const TileFn W4X_TILES[TALL_INT] = OCTAVO_INT_TILES(w4x_rows);

void over_blocks(const LinearTask& task, int64_t first, int64_t last, const TileFn* tiles, int tallest) {
    for (int64_t b = first; b < last; b++) {
        const char* w = task.weights + b * task.block_bytes;
        sweep(task, tiles, tallest, w, w + task.block_bytes, task.block_bytes, b);
    }
}

void linear_f32(const LinearTask& t, int64_t first, int64_t last, char*) { over_blocks(t, first, last, F32_TILES, TALL_FLOAT); }
void linear_f16(const LinearTask& t, int64_t first, int64_t last, char*) { over_blocks(t, first, last, F16_TILES, TALL_FLOAT); }
void linear_bf16(const LinearTask& t, int64_t first, int64_t last, char*) { over_blocks(t, first, last, BF16_TILES, TALL_FLOAT); }
#if defined(__AVX512BF16__)
void linear_bf16_dot(const LinearTask& t, int64_t first, int64_t last, char*) { over_blocks(t, first, last, BF16_DOT_TILES, TALL_FLOAT); }
#endif
void linear_w8(const LinearTask& t, int64_t first, int64_t last, char*) { over_blocks(t, first, last, W8_TILES, TALL_INT); }

// From this many rows on, expanding a block of w4 costs less than unpacking it in every tile.
constexpr int64_t EXPAND_ROWS = 24;

void linear_w4(const LinearTask& task, int64_t first, int64_t last, char* scratch) {
    if (task.rows < EXPAND_ROWS) return over_blocks(task, first, last, W4_TILES, TALL_INT);
    for (int64_t b = first; b < last; b++) {
        const char* w = task.weights + b * task.block_bytes;
        expand_w4(w, task.groups, scratch);
        sweep(task, W4X_TILES, TALL_INT, scratch, w + task.block_bytes, task.block_bytes, b);
    }
}

int64_t scratch_bytes(int64_t groups) { return groups * EXPANDED_RECORD; }

// ---------------------------------------------------------------------------------------------------
// Operands

void prepare_bf16(const char* x, int64_t x_stride, const int32_t* rows, int64_t cols, int64_t groups, char* out,
                  int64_t out_stride, int64_t first, int64_t last) {
    alignas(64) float space[GROUP];
    for (int64_t item = first; item < last; item++) {
        const int64_t r = item / groups, g = item % groups;
        const float* v = group_values(x + (rows ? rows[r] : r) * x_stride, cols, g, space);
        uint16_t* to = reinterpret_cast<uint16_t*>(out + r * out_stride) + g * GROUP;
        for (int i = 0; i < GROUP; i++) {
            uint32_t bits;
            std::memcpy(&bits, v + i, 4);
            const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
            const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;  // rounding could carry a NaN into infinity
            to[i] = uint16_t(is_nan ? (bits >> 16) | 64 : rounded);
        }
    }
}

void prepare_int8(const char* x, int64_t x_stride, const int32_t* rows, int64_t cols, int64_t groups, char* out,
                  int64_t out_stride, int64_t first, int64_t last) {
    alignas(64) float space[GROUP];
    int64_t r = first / groups, g = first % groups;
    for (int64_t item = first; item < last; item++, g = g + 1 < groups ? g + 1 : (r++, 0)) {
        const float* v = group_values(x + (rows ? rows[r] : r) * x_stride, cols, g, space);
        char* row = out + r * out_stride;
        int8_t* q = reinterpret_cast<int8_t*>(row) + g * GROUP;
        auto& scale = reinterpret_cast<GroupScale*>(row + groups * GROUP)[g];

#if defined(__AVX512F__)
        // The loops below, in vectors of the full width.
        const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
        const __m512 va = load(v).v, vb = load(v + 16).v;
        const int32_t largest = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(va), no_sign),
                                                                         _mm512_and_si512(_mm512_castps_si512(vb), no_sign)));
#else
        int32_t largest = 0;  // of the magnitudes' bits: orders like the magnitudes, with NaN above infinity
        for (int i = 0; i < GROUP; i++) {
            int32_t bits;
            std::memcpy(&bits, v + i, 4);
            bits &= 0x7fffffff;
            largest = bits > largest ? bits : largest;
        }
#endif
        float amax;
        std::memcpy(&amax, &largest, 4);
        const bool usable = amax >= 1e-30f && amax <= 1e33f;
        float s = usable ? amax / 127.0f : 0.0f;
        uint32_t s_bits;
        std::memcpy(&s_bits, &s, 4);
        s_bits &= ~3u;
        std::memcpy(&s, &s_bits, 4);
        const float inverse = usable ? 1.0f / s : 0.0f;

        int32_t sum = 0;
        if (usable) {
#if defined(__AVX512F__)
            const __m512 steps = _mm512_set1_ps(inverse), magic = _mm512_set1_ps(MAGIC);
            const __m512i bits = _mm512_set1_epi32(MAGIC_BITS);
            const __m512i wa = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(va, steps), magic)), bits);
            const __m512i wb = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(vb, steps), magic)), bits);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(wa));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(wb));
            sum = _mm512_reduce_add_epi32(_mm512_add_epi32(wa, wb));
#else
            for (int i = 0; i < GROUP; i++) {
                const float shifted = v[i] * inverse + MAGIC;  // rounds to the nearest whole number, ties to even
                int32_t whole;
                std::memcpy(&whole, &shifted, 4);
                whole -= MAGIC_BITS;
                q[i] = int8_t(whole);
                sum += whole;
            }
#endif
        } else {
            for (int i = 0; i < GROUP; i++) q[i] = 0;
            if (!(amax <= 1e33f)) s = __builtin_nanf("");  // not finite, or far out of range: the result must show it
        }
        scale.scale = s;
        scale.shift = -MAGIC * s;
        scale.sum = s * float(sum);
        scale.start = MAGIC_BITS - 128 * sum;
    }
}

}  // namespace

namespace {
const LinearKernels PLAIN = {
    {OPERAND_F32, OPERAND_F32, OPERAND_F32, OPERAND_INT8, OPERAND_INT8},
    scratch_bytes,
    {linear_f32, linear_f16, linear_bf16, linear_w8, linear_w4},
    prepare_bf16,
    prepare_int8,
};
#if defined(__AVX512BF16__)
const LinearKernels WITH_BF16_DOT = {
    {OPERAND_F32, OPERAND_F32, OPERAND_BF16, OPERAND_INT8, OPERAND_INT8},
    scratch_bytes,
    {linear_f32, linear_f16, linear_bf16_dot, linear_w8, linear_w4},
    prepare_bf16,
    prepare_int8,
};
#endif
}  // namespace

#if defined(__AVX512BF16__)
// Intel's cores (Sapphire Rapids measured) start a vdpbf16ps every other cycle and two fused
// multiply-adds every cycle, so that plain f32 on opened pairs is 1.7 times as fast there; AMD's
// (Zen 4) run the dot product at full rate.
const LinearKernels& linear_kernels() {
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") ? PLAIN : WITH_BF16_DOT;
}
const LinearKernels& linear_dot_kernels() { return WITH_BF16_DOT; }
#else
const LinearKernels& linear_kernels() { return PLAIN; }
#endif

}  // namespace octavo::OCTAVO_ISA
