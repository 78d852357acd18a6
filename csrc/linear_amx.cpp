// y = W x for weights of bf16 and w8 on the tile unit of Intel's CPUs (AMX), as products of bf16; many rows of w4 are in
// linear_int_amx.cpp, everything else is as in avx512_bf16. Compiled once, as set avx512_amx.
//
// A tile product computes each element from its own row, its own column and the sum it starts from, always in the
// same order of k; storing and loading sums is exact. So an element's value depends neither on the height of a tile,
// nor on where K and the rows are cut. The rows of a task are cut into tiles of one height, so that the unit is
// configured once: where the height does not divide the rows, the last tiles begin early, compute a few rows again,
// and leave those out of the epilogue.
#include <algorithm>

#include "isa.h"
#include "linear_amx.h"
#include "tiles.h"

namespace octavo::OCTAVO_ISA {
namespace {

// ---------------------------------------------------------------------------------------------------
// The tile unit. Tiles 0..3 hold sums, 4 and 5 rows of the operand, 6 and 7 weights.

// Heights of the first (sums 0, 1; operand 4) and of the second (sums 2, 3; operand 5; may be 0) rows.
TileConfig shapes(int64_t first, int64_t second) {
    TileConfig c;
    const int64_t heights[8] = {first, first, second, second, first, second, GROUP / 2, GROUP / 2};
    for (int t = 0; t < 8; t++)
        if (heights[t]) c.rows[t] = uint8_t(heights[t]), c.row_bytes[t] = 64;
    return c;
}

// How rows are cut: tile t computes rows [start(t), start(t) + height), of which the first `again(t)` are done already.
struct Cut {
    int64_t rows, count, height;
    Cut(int64_t num_rows, int64_t tallest) : rows(num_rows) {
        count = (rows + tallest - 1) / tallest;
        height = (rows + count - 1) / count;
        count = (rows + height - 1) / height;
    }
    int64_t start(int64_t t) const { return smaller(t * height, rows - height); }
    int64_t again(int64_t t) const { return t * height - start(t); }
};

constexpr int64_t OPEN_BYTES = group_bytes(FMT_BF16);  // of a group as tiles want it
constexpr int64_t SUMS = TALL * BLOCK_COLS;
constexpr int64_t CHUNK = 8;                           // groups whose weights (16 KB) stay in the first-level cache for all rows

constexpr int lines_of(int64_t bytes) { return int((bytes + 63) / 64); }

// ---------------------------------------------------------------------------------------------------
// Opening: a group of w8 becomes bf16 [k / 2][col][2].
//
// A byte is put into the mantissa of a float, beside the exponent for which the weight's unit is 1: the float is that
// power of two plus the weight, and one multiply-add scales it and takes the power away. The result is cut off to bf16,
// since rounding to nearest costs as much as all the rest; instead the scale is raised by two thirds of 2^-8: of a value
// m * 2^e, 1 <= m < 2, that is m * 2 / 3 halves of the last place, on average the half that rounding adds. What bf16 holds
// exactly stays exact, and the rest is off by 0.30 of the last place (root mean square) where rounding to nearest is by 0.29.

struct alignas(64) Picks {
    uint8_t byte[4][64];  // byte k of every 4 to all of them
    uint16_t high[32];    // the high half of every 4 bytes to both halves
    constexpr Picks() : byte(), high() {
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 64; i++) byte[k][i] = uint8_t(i / 4 * 4 + k);
        for (int i = 0; i < 32; i++) high[i] = uint16_t(i | 1);
    }
};
constexpr Picks PICKS;

// A byte in bits 8 to 15 has unit 1 beside 2^15.
constexpr int32_t EXPONENT = 0x47000000, BYTE_1 = 0xff00;
template <int K>
OCTAVO_INLINE __m512 byte_of(__m512i raw) {
    if constexpr (K == 1) {  // is in its place
        return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(raw, _mm512_set1_epi32(BYTE_1), _mm512_set1_epi32(EXPONENT), 0xEA));
    } else {
        constexpr __mmask64 PLACES = 0x2222222222222222;
        return _mm512_castsi512_ps(
            _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(EXPONENT), PLACES, _mm512_load_si512(PICKS.byte[K]), raw));
    }
}

// The high halves of both: bf16 [col][2].
OCTAVO_INLINE void put_pair(char* out, __m512 even, __m512 odd) {
    constexpr __mmask32 EVEN = 0x55555555;
    _mm512_store_si512(out, _mm512_mask_permutexvar_epi16(_mm512_castps_si512(odd), EVEN, _mm512_load_si512(PICKS.high),
                                                          _mm512_castps_si512(even)));
}

OCTAVO_INLINE void open_w8(const char* record, char* out) {
    for (int h = 0; h < 2; h++, record += 32, out += 64) {
        // 15 bits of the raised scale: its product with the offset (2^15 and the bytes' own 128) is exact then, and a zero stays one.
        const __m512 raised = _mm512_mul_ps(load_f16(reinterpret_cast<const uint16_t*>(record)).v, _mm512_set1_ps(1.0f + 2.0f / 768));
        const __m512 scale = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(raised), _mm512_set1_epi32(~0x1ff)));
        const __m512 shift = _mm512_mul_ps(scale, _mm512_set1_ps(-32896.0f));
        const char* bytes = record + 64 + 32 * h;
        _Pragma("GCC unroll 8") for (int quad = 0; quad < GROUP / 4; quad++) {
            const __m512i raw = _mm512_loadu_si512(bytes + quad * 128);
            put_pair(out + quad * 256, _mm512_fmadd_ps(byte_of<0>(raw), scale, shift), _mm512_fmadd_ps(byte_of<1>(raw), scale, shift));
            put_pair(out + quad * 256 + 128, _mm512_fmadd_ps(byte_of<2>(raw), scale, shift), _mm512_fmadd_ps(byte_of<3>(raw), scale, shift));
        }
    }
}

// ---------------------------------------------------------------------------------------------------
// Products

template <bool TWO>
OCTAVO_INLINE void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if (TWO) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

OCTAVO_INLINE void load_sums(const float* sums, int64_t first_rows) {
    const float* second = sums + first_rows * BLOCK_COLS;
    _tile_loadd(0, sums, BLOCK_COLS * 4);
    _tile_loadd(1, sums + 16, BLOCK_COLS * 4);
    _tile_loadd(2, second, BLOCK_COLS * 4);
    _tile_loadd(3, second + 16, BLOCK_COLS * 4);
}

template <bool TWO>
OCTAVO_INLINE void store_sums(float* sums, int64_t first_rows) {
    float* second = sums + first_rows * BLOCK_COLS;
    _tile_stored(0, sums, BLOCK_COLS * 4);
    _tile_stored(1, sums + 16, BLOCK_COLS * 4);
    if (TWO) {
        _tile_stored(2, second, BLOCK_COLS * 4);
        _tile_stored(3, second + 16, BLOCK_COLS * 4);
    }
}

// Adds the products of one group.
template <bool TWO>
OCTAVO_INLINE void multiply(const char* x, int64_t x_stride, int64_t first_rows, const char* w) {
    _tile_loadd(6, w, 128);
    _tile_loadd(4, x, x_stride);
    _tile_loadd(7, w + 64, 128);
    _tile_dpbf16ps(0, 4, 6);
    if (TWO) _tile_loadd(5, x + first_rows * x_stride, x_stride);
    _tile_dpbf16ps(1, 4, 7);
    if (TWO) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// Up to 32 rows: weights stream through, and are opened two groups before their product, since a tile load waits for
// stores that are on their way.
template <Format F, bool TWO>
void few_rows(const LinearTask& task, int64_t first, int64_t last, char*) {
    constexpr int64_t BYTES = group_bytes(F), RING = 4, EARLY = 2;
    alignas(64) float sums[SUMS];
    alignas(64) char ring[F == FMT_BF16 ? 64 : RING * OPEN_BYTES];
    const int64_t first_rows = TWO ? (task.rows + 1) / 2 : task.rows;
    const Tiles tiles(shapes(first_rows, task.rows - first_rows));
    for (int64_t b = first; b < last; b++) {
        const char* w = task.weights + b * task.block_bytes;
        Ahead ahead{w + FAR_AHEAD, lines_of(BYTES), true};
        if constexpr (F != FMT_BF16)
            for (int64_t g = 0; g < smaller(EARLY, task.groups); g++) open_w8(w + g * BYTES, ring + g * OPEN_BYTES);
        zero_sums<TWO>();
        for (int64_t g = 0; g < task.groups; g++) {
            fetch(ahead);
            const char* now = w + g * BYTES;
            if constexpr (F != FMT_BF16) {
                const int64_t next = g + EARLY;
                if (next < task.groups) open_w8(w + next * BYTES, ring + next % RING * OPEN_BYTES);
                now = ring + g % RING * OPEN_BYTES;
            }
            multiply<TWO>(task.x + g * GROUP * 2, task.x_stride, first_rows, now);
        }
        store_sums<TWO>(sums, first_rows);
        finish(task.out, sums, int(task.rows), 0, b);
    }
}

// A panel of rows, in tiles of up to 32, passes by one block after another.
template <Format F>
void panel(const LinearTask& task, int64_t first, int64_t last, char* scratch) {
    const Cut cut(task.rows, TALL);
    const int64_t first_rows = (cut.height + 1) / 2;
    const Tiles tiles(shapes(first_rows, cut.height - first_rows));
    float* sums = reinterpret_cast<float*>(scratch);
    char* opened = scratch + SUMS_BYTES;
    const int lines = int((lines_of(group_bytes(F)) + cut.count - 1) / cut.count);
    for (int64_t b = first; b < last; b++) {
        const char* packed = task.weights + b * task.block_bytes;
        const char* w = F == FMT_BF16 ? packed : opened;
        Ahead ahead{packed + task.block_bytes, lines, false};
        for (int64_t g = 0; g < task.groups; g += CHUNK) {
            const int64_t end = smaller(g + CHUNK, task.groups);
            if constexpr (F != FMT_BF16)
                for (int64_t i = g; i < end; i++) open_w8(packed + i * group_bytes(F), opened + i * OPEN_BYTES);
            for (int64_t t = 0; t < cut.count; t++) {
                const char* x = task.x + cut.start(t) * task.x_stride;
                float* out = sums + t * cut.height * BLOCK_COLS;
                if (g == 0) zero_sums<true>();
                else load_sums(out, first_rows);
                for (int64_t i = g; i < end; i++) {
                    fetch(ahead);
                    multiply<true>(x + i * GROUP * 2, task.x_stride, first_rows, w + i * OPEN_BYTES);
                }
                store_sums<true>(out, first_rows);
                if (end < task.groups) continue;
                const int64_t again = cut.again(t);
                finish(task.out, out + again * BLOCK_COLS, int(cut.height - again), cut.start(t) + again, b);
            }
        }
    }
}

template <Format F>
void many_rows(const LinearTask& task, int64_t first, int64_t last, char* scratch) {
    const int64_t at_most = panel_rows(task.x_stride), panels = (task.rows + at_most - 1) / at_most;
    for (int64_t i = 0; i < panels; i++) {
        const int64_t from = task.rows * i / panels, rows = task.rows * (i + 1) / panels - from;
        panel<F>(rows_of(task, from, rows), first, last, scratch);
    }
}

template <Format F>
void linear(const LinearTask& task, int64_t first, int64_t last, char* scratch) {
    const auto run = task.rows > TALL ? many_rows<F> : task.rows > 16 ? few_rows<F, true> : few_rows<F, false>;
    run(task, first, last, scratch);
}

// The instruction takes subnormal numbers for zeros, and so do the tiles.
void prepare_bf16(const char* x, int64_t x_stride, const int32_t* rows, int64_t cols, int64_t groups, char* out,
                  int64_t out_stride, int64_t first, int64_t last) {
    alignas(64) float space[GROUP];
    for (int64_t item = first; item < last; item++) {
        const int64_t r = item / groups, g = item % groups;
        const float* v = group_values(x + (rows ? rows[r] : r) * x_stride, cols, g, space);
        const __m512bh both = _mm512_cvtne2ps_pbh(load(v + 16).v, load(v).v);
        _mm512_storeu_si512(out + r * out_stride + g * GROUP * 2, (__m512i)both);
    }
}

int64_t scratch_bytes(int64_t groups) {
    const int64_t other = avx512_bf16::linear_kernels().scratch_bytes(groups);
    return std::max({other, w4_tiles_scratch(groups), SUMS_BYTES + groups * OPEN_BYTES});
}

}  // namespace

const LinearKernels& linear_kernels() {
    static const LinearKernels kernels = [] {
        LinearKernels k = avx512_bf16::linear_kernels();
        k.operand[FMT_BF16] = k.operand[FMT_W8] = OPERAND_BF16;
        k.scratch_bytes = scratch_bytes;
        k.linear[FMT_BF16] = linear<FMT_BF16>;
        k.linear[FMT_W8] = linear<FMT_W8>;
        k.linear[FMT_W4] = linear_w4_tiles;
        k.prepare_bf16 = prepare_bf16;
        return k;
    }();
    return kernels;
}

}  // namespace octavo::OCTAVO_ISA
