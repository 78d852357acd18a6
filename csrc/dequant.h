// Tensor types of model files and their values in f32. Bit-equal to the reference formulas of the GGUF
// format: every product and sum is rounded separately, in f32.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

enum Type : int32_t {
    TYPE_F32 = 0, TYPE_F16, TYPE_BF16, TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0,
    TYPE_Q2_K, TYPE_Q3_K, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K, TYPE_IQ4_NL, NUM_TYPES
};

struct TypeInfo {
    const char* name;
    int block;  // elements
    int bytes;  // of a block
};
const TypeInfo& type_info(Type t);
Type parse_type(const std::string& name);  // throws std::invalid_argument with the list of names
std::vector<std::string> type_names();

// Bytes of a row of `cols` elements. Throws std::invalid_argument when cols is not whole blocks.
int64_t row_bytes(Type t, int64_t cols);

// One row of whole blocks. Reads row_bytes(type, cols) bytes of `row`.
void dequant_row(int type, const void* row, float* out, int64_t cols);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);    // nearest, ties to even
uint16_t f32_to_bf16(float f);

}  // namespace octavo
