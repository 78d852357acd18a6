#include "dequant.h"

#include <cstring>
#include <stdexcept>

namespace octavo {

namespace {

constexpr TypeInfo TYPES[NUM_TYPES] = {
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},     {"Q4_0", 32, 18},   {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},   {"Q5_1", 32, 24},   {"Q8_0", 32, 34},   {"Q2_K", 256, 84},  {"Q3_K", 256, 110},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18},
};

using Bytes = const uint8_t*;

float half_at(Bytes p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return f16_to_f32(h);
}
uint32_t word_at(Bytes p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

// 32 elements: element i < 16 is the low nibble of byte i, element 16 + i its high nibble.
int nibble(Bytes qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

void q4_0(Bytes p, float* out) {
    const float d = half_at(p);
    for (int i = 0; i < 32; i++) out[i] = d * float(nibble(p + 2, i) - 8);
}
void q4_1(Bytes p, float* out) {
    const float d = half_at(p), m = half_at(p + 2);
    for (int i = 0; i < 32; i++) out[i] = d * float(nibble(p + 4, i)) + m;
}
void q5_0(Bytes p, float* out) {
    const float d = half_at(p);
    const uint32_t high = word_at(p + 2);
    for (int i = 0; i < 32; i++) out[i] = d * float((nibble(p + 6, i) | int((high >> i) & 1) << 4) - 16);
}
void q5_1(Bytes p, float* out) {
    const float d = half_at(p), m = half_at(p + 2);
    const uint32_t high = word_at(p + 4);
    for (int i = 0; i < 32; i++) out[i] = d * float(nibble(p + 8, i) | int((high >> i) & 1) << 4) + m;
}
void q8_0(Bytes p, float* out) {
    const float d = half_at(p);
    for (int i = 0; i < 32; i++) out[i] = float(int8_t(p[2 + i])) * d;
}
constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
void iq4_nl(Bytes p, float* out) {
    const float d = half_at(p);
    for (int i = 0; i < 32; i++) out[i] = d * float(IQ4_VALUES[nibble(p + 2, i)]);
}

// Super-blocks of 256, in strips of 32 elements whose fields lie at one shift of 32 bytes. A strip's loop has
// no branch and no division, so that the compiler vectorises it.

// Two-bit fields: bits 2j of bytes 32h..32h+31 are strip 4h + j.
void q2_k(Bytes p, float* out) {
    Bytes scales = p, qs = p + 16;
    const float d = half_at(p + 80), dmin = half_at(p + 82);
    for (int strip = 0; strip < 8; strip++, out += 32) {
        Bytes from = qs + strip / 4 * 32;
        const int shift = strip % 4 * 2;
        for (int half = 0; half < 2; half++) {
            const int s = scales[2 * strip + half];
            const float scale = d * float(s & 15), minimum = dmin * float(s >> 4);
            for (int i = 16 * half; i < 16 * half + 16; i++) out[i] = scale * float((from[i] >> shift) & 3) - minimum;
        }
    }
}
// Six-bit scale g of 16: low nibbles in the first 8 bytes (8 + g in the high halves), upper two bits
// in strips of the last 4.
int scale_q3(Bytes s, int g) {
    const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    return (low | ((s[8 + g % 4] >> (g / 4 * 2)) & 3) << 4) - 32;
}
void q3_k(Bytes p, float* out) {
    Bytes high = p, qs = p + 32, scales = p + 96;
    const float d = half_at(p + 108);
    for (int strip = 0; strip < 8; strip++, out += 32) {
        Bytes from = qs + strip / 4 * 32;
        const int shift = strip % 4 * 2;
        for (int half = 0; half < 2; half++) {
            const float scale = d * float(scale_q3(scales, 2 * strip + half));
            for (int i = 16 * half; i < 16 * half + 16; i++)  // a high bit of zero takes 4 off
                out[i] = scale * float(((from[i] >> shift) & 3) + (((high[i] >> strip) & 1) << 2) - 4);
        }
    }
}
// Six-bit scale and minimum g of 8 in 12 bytes.
void scale_min_k(Bytes s, int g, int& scale, int& minimum) {
    if (g < 4) {
        scale = s[g] & 63;
        minimum = s[g + 4] & 63;
    } else {
        scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        minimum = (s[g + 4] >> 4) | (s[g] >> 6) << 4;
    }
}
// Groups 2j and 2j + 1 are the low and high nibbles of bytes 32j..32j+31.
void q4_k(Bytes p, float* out) {
    const float d = half_at(p), dmin = half_at(p + 2);
    for (int g = 0; g < 8; g++, out += 32) {
        int scale, minimum;
        scale_min_k(p + 4, g, scale, minimum);
        const float s = d * float(scale), m = dmin * float(minimum);
        Bytes from = p + 16 + g / 2 * 32;
        const int shift = g % 2 * 4;
        for (int i = 0; i < 32; i++) out[i] = s * float((from[i] >> shift) & 15) - m;
    }
}
void q5_k(Bytes p, float* out) {
    const float d = half_at(p), dmin = half_at(p + 2);
    Bytes high = p + 16;
    for (int g = 0; g < 8; g++, out += 32) {
        int scale, minimum;
        scale_min_k(p + 4, g, scale, minimum);
        const float s = d * float(scale), m = dmin * float(minimum);
        Bytes from = p + 48 + g / 2 * 32;
        const int shift = g % 2 * 4;
        for (int i = 0; i < 32; i++) out[i] = s * float(((from[i] >> shift) & 15) | ((high[i] >> g) & 1) << 4) - m;
    }
}
// Strips 4h and 4h + 1 are the low nibbles of bytes 64h..64h+63, 4h + 2 and 4h + 3 the high ones.
void q6_k(Bytes p, float* out) {
    Bytes low = p, high = p + 128, scales = p + 192;
    const float d = half_at(p + 208);
    for (int strip = 0; strip < 8; strip++, out += 32) {
        Bytes from = low + strip / 4 * 64 + strip % 2 * 32, two = high + strip / 4 * 32;
        const int shift = strip % 4 / 2 * 4, two_shift = strip % 4 * 2;
        for (int half = 0; half < 2; half++) {
            const float scale = d * float(int8_t(scales[2 * strip + half]));
            for (int i = 16 * half; i < 16 * half + 16; i++)
                out[i] = scale * float((((from[i] >> shift) & 15) | ((two[i] >> two_shift) & 3) << 4) - 32);
        }
    }
}

using BlockFn = void (*)(Bytes, float*);
constexpr BlockFn BLOCK_FNS[NUM_TYPES] = {nullptr, nullptr, nullptr, q4_0, q4_1, q5_0, q5_1,
                                          q8_0,    q2_k,    q3_k,    q4_k, q5_k, q6_k, iq4_nl};

}  // namespace

const TypeInfo& type_info(Type t) { return TYPES[t]; }

std::vector<std::string> type_names() {
    std::vector<std::string> names;
    for (const auto& t : TYPES) names.push_back(t.name);
    return names;
}

Type parse_type(const std::string& name) {
    std::string all;
    for (int t = 0; t < NUM_TYPES; t++) {
        if (name == TYPES[t].name) return Type(t);
        all += (t ? ", " : "") + std::string(TYPES[t].name);
    }
    throw std::invalid_argument("tensor type '" + name + "' cannot be read; these can: " + all);
}

int64_t row_bytes(Type t, int64_t cols) {
    const TypeInfo& info = TYPES[t];
    if (cols < 0 || cols % info.block)
        throw std::invalid_argument("a row of type " + std::string(info.name) + " holds whole blocks of " +
                                    std::to_string(info.block) + " elements, not " + std::to_string(cols));
    return cols / info.block * info.bytes;
}

void dequant_row(int type, const void* row, float* out, int64_t cols) {
    Bytes p = static_cast<Bytes>(row);
    switch (type) {
        case TYPE_F32: std::memcpy(out, p, size_t(cols) * 4); return;
        case TYPE_F16:
            for (int64_t i = 0; i < cols; i++) out[i] = half_at(p + 2 * i);
            return;
        case TYPE_BF16:
            for (int64_t i = 0; i < cols; i++) {
                uint16_t h;
                std::memcpy(&h, p + 2 * i, 2);
                const uint32_t bits = uint32_t(h) << 16;
                std::memcpy(out + i, &bits, 4);
            }
            return;
        default: break;
    }
    const TypeInfo& info = TYPES[type];
    for (int64_t b = 0; b < cols / info.block; b++) BLOCK_FNS[type](p + b * info.bytes, out + b * info.block);
}

float f16_to_f32(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    uint32_t bits = uint32_t(h & 0x7fff) << 13;
    float f;
    if ((h & 0x7c00) == 0x7c00) {
        bits |= 0x7f800000;  // infinities and NaNs
    } else {
        std::memcpy(&f, &bits, 4);
        f *= 5.192296858534828e+33f;  // 2^112 moves the exponent's bias; exact
        std::memcpy(&bits, &f, 4);
    }
    bits |= sign;
    std::memcpy(&f, &bits, 4);
    return f;
}

uint16_t f32_to_f16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;  // 65,520 and above round to infinity
    if (bits < 0x38800000) {                       // subnormal: adding 0.5 lines its last bit up with the f32's
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, 4);
        return sign | uint16_t(bits - 0x3f000000);
    }
    bits += 0xc8000fff + ((bits >> 13) & 1);  // new bias, and round to even
    return sign | uint16_t(bits >> 13);
}

uint16_t f32_to_bf16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 64);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace octavo
