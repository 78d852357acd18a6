// Packed weight formats and the operand layouts that go with them. Data only.
//
// A packed matrix is a row of column blocks: BLOCK_COLS output columns, all of K. Within a block an
// output column is a lane, and K runs in groups of GROUP (the last one padded with zeros):
//
//   f32    [k][col]           4 bytes          16-bit and 32-bit formats are addressed by k alone,
//   f16    [k][col]           2 bytes          so the group matters only for the padding
//   bf16   [k / 2][col][2]    2 bytes
//   w8     group record: f16 scale[32], u8 [k / 4 = 8][col][4], value = scale * (byte - 128)
//   w4     group record: f16 scale[32], f16 min[32], u8 [4][col][4]: the byte of quad pair p holds
//          k = 8p + i in its low and 8p + 4 + i in its high nibble; value = scale * nibble + min
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace octavo {

constexpr int BLOCK_COLS = 32;
constexpr int GROUP = 32;

enum Format : int32_t { FMT_F32 = 0, FMT_F16, FMT_BF16, FMT_W8, FMT_W4, NUM_FORMATS };

constexpr int W8_RECORD = 2 * BLOCK_COLS + GROUP * BLOCK_COLS;          // bytes of a group of a block
constexpr int W4_RECORD = 4 * BLOCK_COLS + GROUP / 2 * BLOCK_COLS;

// Bytes of one group (32 of K, 32 columns).
constexpr int64_t group_bytes(Format f) {
    switch (f) {
        case FMT_F32: return int64_t(GROUP) * BLOCK_COLS * 4;
        case FMT_F16:
        case FMT_BF16: return int64_t(GROUP) * BLOCK_COLS * 2;
        case FMT_W8: return W8_RECORD;
        default: return W4_RECORD;
    }
}

// How a kernel wants its row operand.
enum OperandKind : int32_t {
    OPERAND_F32 = 0,   // the view itself
    OPERAND_BF16 = 1,  // [padded K] bf16, rounded to nearest even
    OPERAND_INT8 = 2,  // [padded K] int8, then per group a GroupScale
};

// Activations of one group of one token: x ~ scale * q, |q| <= 127.
//
// The kernels of AVX-512 accumulate the integer product on top of the bits of MAGIC (1.5 * 2^23), so
// that the accumulator read as a float is MAGIC + product exactly; `fma(acc, scale, shift)` is then
// the product times scale, rounded once. That needs MAGIC * scale to be exact: the scale keeps 22 bits.
struct GroupScale {
    float scale;    // largest magnitude / 127, last two bits of the mantissa cleared
    float shift;    // -MAGIC * scale
    float sum;      // scale * (sum of q): for the minimum of w4
    int32_t start;  // MAGIC_BITS - 128 * (sum of q): undoes the offset of w8's bytes
};
constexpr float MAGIC = 12582912.0f;
constexpr int32_t MAGIC_BITS = 0x4B400000;

// Bytes of an operand row: padded so that rows do not all fall into the same cache sets.
inline int64_t operand_stride(OperandKind kind, int64_t groups) {
    int64_t bytes = kind == OPERAND_BF16 ? groups * GROUP * 2 : groups * (GROUP + int64_t(sizeof(GroupScale)));
    bytes = (bytes + 63) / 64 * 64;
    return (bytes / 64) % 2 ? bytes : bytes + 64;
}

// A packed matrix y[n] = sum over k of W[n, k] x[k].
struct Weight {
    Format format = FMT_F32;
    int64_t rows = 0;          // outputs (both halves when interleaved)
    int64_t cols = 0;          // K
    int64_t groups = 0;        // ceil(cols / GROUP)
    int64_t blocks = 0;        // column blocks
    bool interleaved = false;  // block b = 16 columns of the first part, 16 of the second
    std::shared_ptr<char> data;

    int64_t block_bytes() const { return groups * group_bytes(format); }
    int64_t bytes() const { return blocks * block_bytes(); }
};

Format parse_format(const std::string& name);  // throws std::invalid_argument
const char* format_name(Format f);

}  // namespace octavo
