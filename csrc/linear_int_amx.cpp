// y = W x for many rows of w4 on the tile unit of Intel's CPUs (AMX): products of integers, with the bits of the vector
// kernels. Few rows take those. Part of the set avx512_amx.
#include "linear_amx.h"

#include "isa.h"
#include "tiles.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t CHUNK = 8;  // groups of a turn

// The integer products of a group, 16 rows x 16 columns at a time, come from the unit; they are exact, and
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
void open_block(const char* packed, int64_t groups, char* out) {
    const __m512i nibble = _mm512_set1_epi8(15);
    constexpr int HALVES = 4;  // of scales and minima
    for (int64_t g = 0; g < groups; g++, out += OPEN_RECORD) {
        for (int i = 0; i < HALVES; i++)
            store(reinterpret_cast<float*>(out) + 16 * i, load_f16(reinterpret_cast<const uint16_t*>(packed) + 16 * i));
        const char* from = packed + HALVES * 32;
        char* to = out + HEAD_BYTES;
        for (int pair = 0; pair < GROUP / 8; pair++, from += 128, to += 256)
            for (int i = 0; i < 128; i += 64) {
                const __m512i w = _mm512_loadu_si512(from + i);
                _mm512_storeu_si512(to + i, _mm512_and_si512(w, nibble));
                _mm512_storeu_si512(to + 128 + i, _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble));
            }
        packed += W4_RECORD;
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
            a[i] = fma(load(head + 32), sum, a[i]);
            b[i] = fma(load(head + 48), sum, b[i]);
        }
        Rows<R>::advance(rows, sizeof(GroupScale));
    }
    OCTAVO_UNROLL for (int i = 0; i < R; i++) store(sums + i * BLOCK_COLS, a[i]), store(sums + i * BLOCK_COLS + 16, b[i]);
}

// A block, opened, over all rows; the last rows begin early where 16 does not divide the rows.
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
                scale(products + r * 16, scales + r * stride, stride, w, groups, out + r * BLOCK_COLS, c > 0,
                      x + (r + INT_ROWS) * stride, scales + (r + INT_ROWS) * stride);
            if (c + 1 == chunks) finish(task.out, out + again * BLOCK_COLS, int(INT_ROWS - again), start + again, block);
        }
    }
}

// Tiles 0..3 hold sums, 4 and 5 rows of the operand, a group deep, 6 and 7 weights.
TileConfig shapes() {
    TileConfig c;
    for (int t = 0; t < 8; t++) {
        c.rows[t] = uint8_t(t < 6 ? INT_ROWS : GROUP / 4);
        c.row_bytes[t] = t == 4 || t == 5 ? GROUP : 64;
    }
    return c;
}

}  // namespace

void linear_w4_tiles(const LinearTask& task, int64_t first, int64_t last, char* scratch) {
    const int64_t again = (INT_ROWS - task.rows % INT_ROWS) % INT_ROWS;
    if (task.rows < LEAST_ROWS || again * 6 > task.rows)
        return avx512_bf16::linear_kernels().linear[FMT_W4](task, first, last, scratch);
    const Tiles tiles(shapes());
    float* sums = reinterpret_cast<float*>(scratch);
    char* open = scratch + SUMS_BYTES;
    const int64_t at_most = panel_rows(task.x_stride), panels = (task.rows + at_most - 1) / at_most;
    for (int64_t i = 0; i < panels; i++) {
        const int64_t from = task.rows * i / panels;
        const LinearTask part = rows_of(task, from, task.rows * (i + 1) / panels - from);
        for (int64_t b = first; b < last; b++) {
            open_block(task.weights + b * task.block_bytes, task.groups, open);
            int_block(part, open, b, sums);
        }
    }
}

int64_t w4_tiles_scratch(int64_t groups) { return SUMS_BYTES + groups * OPEN_RECORD; }

}  // namespace octavo::OCTAVO_ISA
