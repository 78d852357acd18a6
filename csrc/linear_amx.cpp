// y = W x for bf16 weights on the tile unit of Intel's CPUs (AMX); everything else is as in avx512_bf16. Compiled once,
// as set avx512_amx.
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
    return other > SUMS_BYTES ? other : SUMS_BYTES;
}

}  // namespace

const LinearKernels& linear_kernels() {
    static const LinearKernels kernels = [] {
        LinearKernels k = avx512_bf16::linear_kernels();
        k.operand[FMT_BF16] = OPERAND_BF16;
        k.scratch_bytes = scratch_bytes;
        k.linear[FMT_BF16] = linear_bf16;
        k.prepare_bf16 = prepare_bf16;
        return k;
    }();
    return kernels;
}

}  // namespace octavo::OCTAVO_ISA
