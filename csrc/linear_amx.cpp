// y = W x for bf16 weights, and for many rows of w8 and w4, on the tile unit of Intel's CPUs (AMX); everything else is
// as in avx512_bf16. Compiled once, as set avx512_amx.
//
// A tile product computes each element from its own row, its own column and the sum it starts from, always in the
// same order of k; storing and loading sums is exact. So an element's value depends neither on the height of a tile,
// nor on where K and the rows are cut. The rows of a task are cut into tiles of one height, so that the unit is
// configured once: where the height does not divide the rows, the last tiles begin early, compute a few rows again,
// and leave those out of the epilogue.
#include "linear.h"

#include <immintrin.h>

#include "isa.h"
#include "linear_parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

// ---------------------------------------------------------------------------------------------------
// The tile unit. Tiles 0..3 hold sums, 4 and 5 rows of the operand, 6 and 7 weights.

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Configured while it lives. Released at the end, so that the kernel has no tiles to save when threads switch.
class Tiles {
  public:
    // Heights of the first (sums 0, 1; operand 4) and of the second (sums 2, 3; operand 5; may be 0) rows.
    Tiles(int64_t first, int64_t second) {
        TileConfig c;
        const int64_t heights[8] = {first, first, second, second, first, second, GROUP / 2, GROUP / 2};
        for (int t = 0; t < 8; t++)
            if (heights[t]) c.rows[t] = uint8_t(heights[t]), c.row_bytes[t] = 64;
        asm volatile("" : : "r"(&c) : "memory");  // the intrinsic does not say that it reads all of it
        _tile_loadconfig(&c);
    }
    // For int8: 16 rows of sums (0..3) and of operand (4, 5), a group deep; weights as before.
    Tiles() {
        TileConfig c;
        for (int t = 0; t < 8; t++) {
            c.rows[t] = uint8_t(t < 6 ? 16 : GROUP / 4);
            c.row_bytes[t] = t == 4 || t == 5 ? GROUP : 64;
        }
        asm volatile("" : : "r"(&c) : "memory");
        _tile_loadconfig(&c);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

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

constexpr int64_t TALL = 32;         // rows of a tile
constexpr int64_t MAX_PANEL = 512;
constexpr int64_t SUMS_BYTES = (MAX_PANEL + TALL) * BLOCK_COLS * 4;
constexpr int64_t GROUP_BYTES = group_bytes(FMT_BF16);
constexpr int64_t CHUNK = 8;         // groups whose weights (16 KB) stay in the first-level cache for all rows
constexpr int64_t FAR_AHEAD = 8192;  // bytes that a streaming block is fetched ahead

// Rows whose operand stays in the second-level cache while the blocks of weights pass by.
int64_t panel_rows(int64_t stride) {
    constexpr int64_t BYTES = 1 << 20, LEAST = 96;
    const int64_t rows = BYTES / stride;
    return rows < LEAST ? LEAST : smaller(rows, MAX_PANEL);
}

LinearTask rows_of(const LinearTask& task, int64_t from, int64_t rows) {
    LinearTask part = task;
    part.x += from * task.x_stride;
    part.rows = rows;
    part.out.y += from * task.out.y_stride;
    if (part.out.residual) part.out.residual += from * task.out.residual_stride;
    if (part.out.bad_rows) part.out.bad_rows += from;
    return part;
}

// Groups [0, groups) of a block; `more`: on top of the sums that are there.
template <bool TWO>
OCTAVO_INLINE void tile(const char* x, int64_t x_stride, int64_t first_rows, const char* w, int64_t groups,
                        float* sums, bool more, Ahead& ahead) {
    float* second = sums + first_rows * BLOCK_COLS;
    if (more) {
        _tile_loadd(0, sums, BLOCK_COLS * 4);
        _tile_loadd(1, sums + 16, BLOCK_COLS * 4);
        if (TWO) {
            _tile_loadd(2, second, BLOCK_COLS * 4);
            _tile_loadd(3, second + 16, BLOCK_COLS * 4);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        if (TWO) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }
    for (int64_t g = 0; g < groups; g++, x += GROUP * 2, w += GROUP_BYTES) {
        fetch(ahead);
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
    _tile_stored(0, sums, BLOCK_COLS * 4);
    _tile_stored(1, sums + 16, BLOCK_COLS * 4);
    if (TWO) {
        _tile_stored(2, second, BLOCK_COLS * 4);
        _tile_stored(3, second + 16, BLOCK_COLS * 4);
    }
}

template <bool TWO>
void panel(const LinearTask& task, int64_t first, int64_t last, float* sums) {
    const Cut cut(task.rows, TALL);
    const int64_t first_rows = TWO ? (cut.height + 1) / 2 : cut.height;
    const Tiles tiles(first_rows, cut.height - first_rows);
    const int64_t chunk = cut.count == 1 ? task.groups : CHUNK;
    const int lines = int((32 + cut.count - 1) / cut.count);  // a group of a block is 32 lines
    for (int64_t b = first; b < last; b++) {
        const char* w = task.weights + b * task.block_bytes;
        Ahead ahead{cut.count == 1 ? w + FAR_AHEAD : w + task.block_bytes, lines};
        for (int64_t g = 0; g < task.groups; g += chunk) {
            const int64_t groups = smaller(chunk, task.groups - g);
            for (int64_t t = 0; t < cut.count; t++) {
                const char* x = task.x + cut.start(t) * task.x_stride + g * GROUP * 2;
                float* out = sums + t * cut.height * BLOCK_COLS;
                tile<TWO>(x, task.x_stride, first_rows, w + g * GROUP_BYTES, groups, out, g > 0, ahead);
                if (g + groups < task.groups) continue;
                const int64_t again = cut.again(t);
                finish(task.out, out + again * BLOCK_COLS, int(cut.height - again), cut.start(t) + again, b);
            }
        }
    }
}

void linear_bf16(const LinearTask& task, int64_t first, int64_t last, char* scratch) {
    const int64_t at_most = panel_rows(task.x_stride), panels = (task.rows + at_most - 1) / at_most;
    for (int64_t i = 0; i < panels; i++) {
        const int64_t from = task.rows * i / panels, rows = task.rows * (i + 1) / panels - from;
        const auto run = rows > 16 ? panel<true> : panel<false>;
        run(rows_of(task, from, rows), first, last, reinterpret_cast<float*>(scratch));
    }
}

// ---------------------------------------------------------------------------------------------------
// w8 and w4: the integer products of a group, 16 rows x 16 columns at a time, come from the unit; they are exact, and
// are scaled in the order of groups with the operations of int_tile (linear_kernels.cpp), whose bits come out. Few rows
// take int_tile itself.
//
// The unit and the vectors take turns, over CHUNK groups each: beside instructions of the unit, vectors multiply at
// half their speed.

constexpr int INT_ROWS = 16;
constexpr int PRODUCTS = INT_ROWS * 16;              // of a tile
constexpr int SCALED_ROWS = 8;                       // whose sums fit the registers
constexpr int HEAD_BYTES = 2 * 4 * BLOCK_COLS;       // float scale[32], float min[32]
constexpr int OPEN_RECORD = HEAD_BYTES + GROUP * BLOCK_COLS;  // then s8 [k / 4][col][4]
constexpr int64_t LEAST_ROWS = 32;

// A group's record, opened once a block and panel.
template <bool W4>
void open_block(const char* packed, int64_t groups, char* out) {
    const __m512i nibble = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(char(128));
    constexpr int HALVES = W4 ? 4 : 2;  // of scales and minima
    for (int64_t g = 0; g < groups; g++, out += OPEN_RECORD) {
        for (int i = 0; i < HALVES; i++)
            store(reinterpret_cast<float*>(out) + 16 * i, load_f16(reinterpret_cast<const uint16_t*>(packed) + 16 * i));
        const char* from = packed + HALVES * 32;
        char* to = out + HEAD_BYTES;
        if constexpr (W4) {
            for (int pair = 0; pair < GROUP / 8; pair++, from += 128, to += 256)
                for (int i = 0; i < 128; i += 64) {
                    const __m512i w = _mm512_loadu_si512(from + i);
                    _mm512_storeu_si512(to + i, _mm512_and_si512(w, nibble));
                    _mm512_storeu_si512(to + 128 + i, _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble));
                }
        } else {
            for (int i = 0; i < GROUP * BLOCK_COLS; i += 64)
                _mm512_storeu_si512(to + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), sign));
        }
        packed += group_bytes(W4 ? FMT_W4 : FMT_W8);
    }
}

// Products of a group into tiles C and D, while those of the group before, in E and F, go to `done`.
#define OCTAVO_PRODUCTS(A, C, D, E, F)          \
    _tile_loadd(A, x, x_stride);                \
    _tile_loadd(6, w, 128);                     \
    _tile_zero(C);                              \
    _tile_dpbssd(C, A, 6);                      \
    if (done) _tile_stored(E, done, 64);        \
    _tile_loadd(7, w + 64, 128);                \
    _tile_zero(D);                              \
    _tile_dpbssd(D, A, 7);                      \
    if (done) _tile_stored(F, done + PRODUCTS, 64)

// out: int32 [group][half of the block][row][16]
OCTAVO_INLINE void multiply(const char* x, int64_t x_stride, const char* w, int64_t groups, int32_t* out) {
    w += HEAD_BYTES;
    int32_t* done = nullptr;
    OCTAVO_PRODUCTS(4, 0, 1, 2, 3);
    done = out;
    int64_t g = 1;
    for (; g + 2 <= groups; g += 2) {
        x += GROUP, w += OPEN_RECORD;
        OCTAVO_PRODUCTS(5, 2, 3, 0, 1);
        x += GROUP, w += OPEN_RECORD, done += 2 * PRODUCTS;
        OCTAVO_PRODUCTS(4, 0, 1, 2, 3);
        done += 2 * PRODUCTS;
    }
    if (g < groups) {
        x += GROUP, w += OPEN_RECORD;
        OCTAVO_PRODUCTS(5, 2, 3, 0, 1);
        done += 2 * PRODUCTS;
        _tile_stored(2, done, 64);
        _tile_stored(3, done + PRODUCTS, 64);
    } else {
        _tile_stored(0, done, 64);
        _tile_stored(1, done + PRODUCTS, 64);
    }
}
#undef OCTAVO_PRODUCTS

// Adds the scaled products to the sums of 8 rows. `next_x`, `next_scales`: the rows that come later, to be fetched.
template <bool W4>
OCTAVO_INLINE void scale(const int32_t* products, const char* scales, int64_t stride, const char* w, int64_t groups,
                         float* sums, bool more, const char* next_x, const char* next_scales) {
    constexpr int R = SCALED_ROWS;
    V a[R], b[R];
    OCTAVO_UNROLL for (int i = 0; i < R; i++) {
        a[i] = more ? load(sums + i * BLOCK_COLS) : set1(0.0f);
        b[i] = more ? load(sums + i * BLOCK_COLS + 16) : set1(0.0f);
    }
    auto rows = Rows<R>::make(scales, stride);
    for (int64_t g = 0; g < groups; g++, w += OPEN_RECORD, products += 2 * PRODUCTS) {
        for (int i = 0; i < 4; i++) __builtin_prefetch(next_x + 64 * i, 0, 3);
        __builtin_prefetch(next_scales, 0, 3);
        next_x += stride, next_scales += stride;
        const float* head = reinterpret_cast<const float*>(w);
        const V scale_a = load(head), scale_b = load(head + 16);
        OCTAVO_UNROLL for (int i = 0; i < R; i++) {
            const auto& group = *reinterpret_cast<const GroupScale*>(Rows<R>::row(rows, i));
            const V x = set1(group.scale), sum = set1(group.sum);
            // A product is below 2^20, so that its float is exact and the scaled one rounded once.
            const V pa = {_mm512_cvtepi32_ps(_mm512_loadu_si512(products + 16 * i))};
            const V pb = {_mm512_cvtepi32_ps(_mm512_loadu_si512(products + PRODUCTS + 16 * i))};
            a[i] = fma(pa * x, scale_a, a[i]);
            b[i] = fma(pb * x, scale_b, b[i]);
            if constexpr (W4) {
                a[i] = fma(load(head + 32), sum, a[i]);
                b[i] = fma(load(head + 48), sum, b[i]);
            }
        }
        Rows<R>::advance(rows, sizeof(GroupScale));
    }
    OCTAVO_UNROLL for (int i = 0; i < R; i++) store(sums + i * BLOCK_COLS, a[i]), store(sums + i * BLOCK_COLS + 16, b[i]);
}

// A block, opened, over all rows; the last rows begin early where 16 does not divide the rows.
template <bool W4>
void int_block(const LinearTask& task, const char* open, int64_t block, float* sums) {
    alignas(64) int32_t products[CHUNK * 2 * PRODUCTS];
    const int64_t stride = task.x_stride, tiles = (task.rows + INT_ROWS - 1) / INT_ROWS;
    const int64_t chunks = (task.groups + CHUNK - 1) / CHUNK;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t from = task.groups * c / chunks, groups = task.groups * (c + 1) / chunks - from;
        const char* w = open + from * OPEN_RECORD;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t start = smaller(t * INT_ROWS, task.rows - INT_ROWS), again = t * INT_ROWS - start;
            const char* row = task.x + start * stride;
            const char* x = row + from * GROUP;
            const char* scales = row + task.groups * GROUP + from * int64_t(sizeof(GroupScale));
            float* out = sums + t * INT_ROWS * BLOCK_COLS;
            multiply(x, stride, w, groups, products);
            for (int r = 0; r < INT_ROWS; r += SCALED_ROWS)
                scale<W4>(products + r * 16, scales + r * stride, stride, w, groups, out + r * BLOCK_COLS, c > 0,
                          x + (r + INT_ROWS) * stride, scales + (r + INT_ROWS) * stride);
            if (c + 1 == chunks) finish(task.out, out + again * BLOCK_COLS, int(INT_ROWS - again), start + again, block);
        }
    }
}

template <bool W4>
void linear_int(const LinearTask& task, int64_t first, int64_t last, char* scratch) {
    const int64_t again = (INT_ROWS - task.rows % INT_ROWS) % INT_ROWS;
    if (task.rows < LEAST_ROWS || again * 6 > task.rows)
        return avx512_bf16::linear_kernels().linear[W4 ? FMT_W4 : FMT_W8](task, first, last, scratch);
    const Tiles tiles;
    float* sums = reinterpret_cast<float*>(scratch);
    char* open = scratch + SUMS_BYTES;
    const int64_t at_most = panel_rows(task.x_stride), panels = (task.rows + at_most - 1) / at_most;
    for (int64_t i = 0; i < panels; i++) {
        const int64_t from = task.rows * i / panels;
        const LinearTask part = rows_of(task, from, task.rows * (i + 1) / panels - from);
        for (int64_t b = first; b < last; b++) {
            open_block<W4>(task.weights + b * task.block_bytes, task.groups, open);
            int_block<W4>(part, open, b, sums);
        }
    }
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
    const int64_t own = SUMS_BYTES + groups * OPEN_RECORD;
    return other > own ? other : own;
}

}  // namespace

const LinearKernels& linear_kernels() {
    static const LinearKernels kernels = [] {
        LinearKernels k = avx512_bf16::linear_kernels();
        k.operand[FMT_BF16] = OPERAND_BF16;
        k.scratch_bytes = scratch_bytes;
        k.linear[FMT_BF16] = linear_bf16;
        k.linear[FMT_W8] = linear_int<false>;
        k.linear[FMT_W4] = linear_int<true>;
        k.prepare_bf16 = prepare_bf16;
        return k;
    }();
    return kernels;
}

}  // namespace octavo::OCTAVO_ISA
