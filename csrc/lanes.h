// Vectors of 16 floats on every instruction set. Included by kernel files only.
//
// Each function is one rounding: fma() is fused where the set has it (and a product and a sum where it does
// not: the generic set), everything else is the plain IEEE operation, and every reduction has a fixed order.
// So a result depends on the set, but never on the tile that a lane happens to be in.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int LANES = 16;

OCTAVO_INLINE uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}
OCTAVO_INLINE float float_of(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}
OCTAVO_INLINE float read_f32(const char* p) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
}
OCTAVO_INLINE int32_t read_i32(const char* p) {
    int32_t x;
    std::memcpy(&x, p, 4);
    return x;
}
// Round to nearest even; NaN stays NaN.
OCTAVO_INLINE uint16_t to_bf16(float x) {
    const uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t(u >> 16 | 0x40);
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
OCTAVO_INLINE float from_bf16(uint16_t x) { return float_of(uint32_t(x) << 16); }

// On every set: max and min return their second operand when either is NaN.

#if defined(__AVX512F__)

struct V {
    __m512 v;
};
OCTAVO_INLINE V load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE void store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1); }
OCTAVO_INLINE V load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
OCTAVO_INLINE void store_part(float* p, V a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
OCTAVO_INLINE V set1(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE V operator+(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE V operator-(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE V operator*(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE V operator/(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
OCTAVO_INLINE V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE V round(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
OCTAVO_INLINE V abs(V a) { return {_mm512_abs_ps(a.v)}; }
// Where a < b: x, elsewhere y.
OCTAVO_INLINE V where_less(V a, V b, V x, V y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// A bit per lane.
OCTAVO_INLINE uint32_t mask_ge(V a, V b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
OCTAVO_INLINE uint32_t mask_gt(V a, V b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
OCTAVO_INLINE uint32_t mask_eq(V a, V b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
OCTAVO_INLINE V select(uint32_t mask, V x, V y) { return {_mm512_mask_blend_ps(__mmask16(mask), y.v, x.v)}; }
// Truncated to int32.
OCTAVO_INLINE void store_int(int32_t* p, V a) { _mm512_storeu_si512(p, _mm512_cvttps_epi32(a.v)); }
// a * 2^n for whole n in [-127, 128].
OCTAVO_INLINE V scale2(V a, V n) { return {_mm512_scalef_ps(a.v, n.v)}; }
OCTAVO_INLINE V load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Sixteen pairs of bf16: a bf16 is the upper half of an f32, so that they open without arithmetic.
OCTAVO_INLINE V load_even_bf16(const char* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
OCTAVO_INLINE V load_odd_bf16(const char* p) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000u))))};
}

#elif defined(__AVX2__)

struct V {
    __m256 a, b;
};
OCTAVO_INLINE V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE void store(float* p, V x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
OCTAVO_INLINE V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
#define OCTAVO_BINARY(name, f) \
    OCTAVO_INLINE V name(V x, V y) { return {f(x.a, y.a), f(x.b, y.b)}; }
OCTAVO_BINARY(operator+, _mm256_add_ps)
OCTAVO_BINARY(operator-, _mm256_sub_ps)
OCTAVO_BINARY(operator*, _mm256_mul_ps)
OCTAVO_BINARY(operator/, _mm256_div_ps)
OCTAVO_BINARY(max, _mm256_max_ps)
OCTAVO_BINARY(min, _mm256_min_ps)
#undef OCTAVO_BINARY
OCTAVO_INLINE V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
OCTAVO_INLINE V round(V x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
OCTAVO_INLINE V abs(V x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
OCTAVO_INLINE V where_less(V a, V b, V x, V y) {
    return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
#define OCTAVO_MASK(name, op)                                                  \
    OCTAVO_INLINE uint32_t name(V x, V y) {                                    \
        return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, op))) |     \
               uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, op))) << 8; \
    }
OCTAVO_MASK(mask_ge, _CMP_GE_OQ)
OCTAVO_MASK(mask_gt, _CMP_GT_OQ)
OCTAVO_MASK(mask_eq, _CMP_EQ_OQ)
#undef OCTAVO_MASK
OCTAVO_INLINE V select(uint32_t mask, V x, V y) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i lo = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(mask)), bit), bit);
    const __m256i hi = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(mask >> 8)), bit), bit);
    return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(lo)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(hi))};
}
OCTAVO_INLINE void store_int(int32_t* p, V x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvttps_epi32(x.a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvttps_epi32(x.b));
}
OCTAVO_INLINE __m256 pow2_half(__m256 n) {  // 2^n for whole n in [-126, 127]
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
OCTAVO_INLINE __m256 scale2_half(__m256 a, __m256 n) {
    // In two steps, so that 128 and -127 are in reach.
    const __m256 h = _mm256_round_ps(_mm256_mul_ps(n, _mm256_set1_ps(0.5f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm256_mul_ps(_mm256_mul_ps(a, pow2_half(h)), pow2_half(_mm256_sub_ps(n, h)));
}
OCTAVO_INLINE V scale2(V a, V n) { return {scale2_half(a.a, n.a), scale2_half(a.b, n.b)}; }
OCTAVO_INLINE V load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
OCTAVO_INLINE __m256i load_half(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
OCTAVO_INLINE V load_even_bf16(const char* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(load_half(p), 16)), _mm256_castsi256_ps(_mm256_slli_epi32(load_half(p + 32), 16))};
}
OCTAVO_INLINE V load_odd_bf16(const char* p) {
    const __m256i high = _mm256_set1_epi32(int(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(load_half(p), high)), _mm256_castsi256_ps(_mm256_and_si256(load_half(p + 32), high))};
}

#else  // NEON and generic: four vectors of four floats, in the compiler's own vector type

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
struct V {
    f4 p[4];
};
#define OCTAVO_EACH for (int j = 0; j < 4; ++j)
OCTAVO_INLINE V load(const float* p) {
    V r;
    OCTAVO_EACH std::memcpy(&r.p[j], p + 4 * j, 16);
    return r;
}
OCTAVO_INLINE void store(float* p, V a) { OCTAVO_EACH std::memcpy(p + 4 * j, &a.p[j], 16); }
OCTAVO_INLINE V set1(float x) {
    const f4 v = {x, x, x, x};
    return {{v, v, v, v}};
}
OCTAVO_INLINE f4 pick(i4 mask, f4 x, f4 y) { return (f4)(((i4)x & mask) | ((i4)y & ~mask)); }
#define OCTAVO_BINARY(name, expression)        \
    OCTAVO_INLINE V name(V x, V y) {           \
        V r;                                   \
        OCTAVO_EACH {                          \
            const f4 a = x.p[j], b = y.p[j];   \
            r.p[j] = expression;               \
        }                                      \
        return r;                              \
    }
OCTAVO_BINARY(operator+, a + b)
OCTAVO_BINARY(operator-, a - b)
OCTAVO_BINARY(operator*, a * b)
OCTAVO_BINARY(operator/, a / b)
OCTAVO_BINARY(max, pick(a > b, a, b))
OCTAVO_BINARY(min, pick(a < b, a, b))
#undef OCTAVO_BINARY
OCTAVO_INLINE V fma(V x, V y, V z) {
    V r;
#if defined(__ARM_NEON)
    OCTAVO_EACH r.p[j] = (f4)vfmaq_f32((float32x4_t)z.p[j], (float32x4_t)x.p[j], (float32x4_t)y.p[j]);
#else
    OCTAVO_EACH r.p[j] = x.p[j] * y.p[j] + z.p[j];
#endif
    return r;
}
OCTAVO_INLINE V abs(V x) {
    V r;
    OCTAVO_EACH r.p[j] = (f4)((i4)x.p[j] & 0x7fffffff);
    return r;
}
// Only for |a| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
OCTAVO_INLINE V round(V a) {
    const V magic = set1(12582912.0f);
    return (a + magic) - magic;
}
OCTAVO_INLINE V where_less(V a, V b, V x, V y) {
    V r;
    OCTAVO_EACH r.p[j] = pick(a.p[j] < b.p[j], x.p[j], y.p[j]);
    return r;
}
OCTAVO_INLINE uint32_t mask_bits(const i4* m) {
    uint32_t bits = 0;
    OCTAVO_EACH {
        const i4 weight = {1, 2, 4, 8};
        const i4 b = m[j] & weight;
        bits |= uint32_t(b[0] | b[1] | b[2] | b[3]) << (4 * j);
    }
    return bits;
}
#define OCTAVO_MASK(name, op)                \
    OCTAVO_INLINE uint32_t name(V x, V y) {  \
        i4 m[4];                             \
        OCTAVO_EACH m[j] = x.p[j] op y.p[j]; \
        return mask_bits(m);                 \
    }
OCTAVO_MASK(mask_ge, >=)
OCTAVO_MASK(mask_gt, >)
OCTAVO_MASK(mask_eq, ==)
#undef OCTAVO_MASK
OCTAVO_INLINE V select(uint32_t mask, V x, V y) {
    V r;
    OCTAVO_EACH {
        const int32_t m = int32_t(mask >> (4 * j));
        const i4 bit = {1, 2, 4, 8}, all = {m, m, m, m};
        r.p[j] = pick((all & bit) != 0, x.p[j], y.p[j]);
    }
    return r;
}
OCTAVO_INLINE void store_int(int32_t* p, V a) {
    OCTAVO_EACH {
        const i4 whole = __builtin_convertvector(a.p[j], i4);
        std::memcpy(p + 4 * j, &whole, 16);
    }
}
OCTAVO_INLINE V scale2(V a, V n) {
    V r;
    OCTAVO_EACH {
        // Halves, so that 128 and -127 are in reach.
        const i4 whole = __builtin_convertvector(n.p[j], i4);
        const i4 h = whole >> 1;
        const f4 first = (f4)((h + 127) << 23), second = (f4)((whole - h + 127) << 23);
        r.p[j] = (a.p[j] * first) * second;
    }
    return r;
}
#if defined(__ARM_NEON)
OCTAVO_INLINE f4 load4_f16(const uint16_t* p) { return (f4)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
#else
// Exactly, subnormals and infinities included, without a branch.
OCTAVO_INLINE f4 load4_f16(const uint16_t* p) {
    const i4 h = {p[0], p[1], p[2], p[3]};
    const i4 sign = (h & 0x8000) << 16, body = (h & 0x7fff) << 13;  // exponent and mantissa in f32's places
    const float bias = 5.192296858534828e+33f;                      // 2^112: moves the exponent's bias
    const f4 moved = (f4)body * f4{bias, bias, bias, bias};
    const i4 special = (i4)((h & 0x7c00) == 0x7c00);
    return (f4)((i4)moved | (special & 0x7f800000) | sign);
}
#endif
OCTAVO_INLINE V load_f16(const uint16_t* p) {
    V r;
    OCTAVO_EACH r.p[j] = load4_f16(p + 4 * j);
    return r;
}
OCTAVO_INLINE i4 load4_int(const char* p) {
    i4 r;
    std::memcpy(&r, p, 16);
    return r;
}
OCTAVO_INLINE V load_even_bf16(const char* p) {
    V r;
    OCTAVO_EACH r.p[j] = (f4)(load4_int(p + 16 * j) << 16);
    return r;
}
OCTAVO_INLINE V load_odd_bf16(const char* p) {
    V r;
    OCTAVO_EACH r.p[j] = (f4)(load4_int(p + 16 * j) & int32_t(0xffff0000u));
    return r;
}
#undef OCTAVO_EACH

#endif

#if !defined(__AVX512F__)
OCTAVO_INLINE V load_part(const float* p, int n) {
    alignas(64) float t[LANES] = {};
    std::memcpy(t, p, size_t(n) * 4);
    return load(t);
}
OCTAVO_INLINE void store_part(float* p, V a, int n) {
    alignas(64) float t[LANES];
    store(t, a);
    std::memcpy(p, t, size_t(n) * 4);
}
#endif

// Load or store the first min(n, 16) lanes; missing ones read as 0.
OCTAVO_INLINE V load_upto(const float* p, int64_t n) { return n >= LANES ? load(p) : load_part(p, int(n)); }
OCTAVO_INLINE void store_upto(float* p, V a, int64_t n) {
    if (n >= LANES) store(p, a);
    else store_part(p, a, int(n));
}

// Lanes i and i + 8, then + 4, + 2, + 1.
#if defined(__AVX2__)
#if defined(__AVX512F__)
OCTAVO_INLINE __m256 low_half(V a) { return _mm512_castps512_ps256(a.v); }
OCTAVO_INLINE __m256 high_half(V a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)); }
#else
OCTAVO_INLINE __m256 low_half(V a) { return a.a; }
OCTAVO_INLINE __m256 high_half(V a) { return a.b; }
#endif
#define OCTAVO_REDUCE(name, f256, f128, f1)                                                 \
    OCTAVO_INLINE float name(V a) {                                                         \
        const __m256 h = f256(low_half(a), high_half(a));                                   \
        __m128 q = f128(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));            \
        q = f128(q, _mm_movehl_ps(q, q));                                                   \
        return _mm_cvtss_f32(f1(q, _mm_shuffle_ps(q, q, 1)));                               \
    }
OCTAVO_REDUCE(sum_lanes, _mm256_add_ps, _mm_add_ps, _mm_add_ss)
OCTAVO_REDUCE(max_lanes, _mm256_max_ps, _mm_max_ps, _mm_max_ss)
#undef OCTAVO_REDUCE
#else
OCTAVO_INLINE float sum_lanes(V a) {
    alignas(64) float t[LANES];
    store(t, a);
    for (int w = LANES / 2; w; w /= 2)
        for (int i = 0; i < w; ++i) t[i] = t[i] + t[i + w];
    return t[0];
}
OCTAVO_INLINE float max_lanes(V a) {
    alignas(64) float t[LANES];
    store(t, a);
    for (int w = LANES / 2; w; w /= 2)
        for (int i = 0; i < w; ++i) t[i] = t[i] > t[i + w] ? t[i] : t[i + w];
    return t[0];
}
#endif

// 2^x, exact at 0; 0 for x < -126 (and -inf), x clamped at 127. Relative error about 1e-7.
// Taylor coefficients ln2^k / k! of 2^f on [-1/2, 1/2].
OCTAVO_INLINE V exp2v(V x) {
    const V low = set1(-126.0f);
    const V c = min(set1(127.0f), max(low, x));  // in this order a NaN passes
    const V n = round(c);
    const V f = c - n;
    V p = set1(1.5252733804059841e-5f);
    p = fma(p, f, set1(1.5403530393381609e-4f));
    p = fma(p, f, set1(1.3333558146428443e-3f));
    p = fma(p, f, set1(9.6181291076284772e-3f));
    p = fma(p, f, set1(5.5504108664821580e-2f));
    p = fma(p, f, set1(2.4022650695910071e-1f));
    p = fma(p, f, set1(6.9314718055994531e-1f));
    p = fma(p, f, set1(1.0f));
    return where_less(x, low, set1(0.0f), scale2(p, n));
}

// e^x; 0 below -87.3, clamped at 88.7. ln 2 in two parts (Cody and Waite), Taylor series on |f| <= ln2 / 2.
OCTAVO_INLINE V expv(V x) {
    const V low = set1(-87.3f);
    const V c = min(set1(88.7f), max(low, x));  // in this order a NaN passes
    const V n = round(c * set1(1.4426950408889634f));
    V f = fma(n, set1(-0.693359375f), c);
    f = fma(n, set1(2.12194440e-4f), f);
    V p = set1(1.9841269841269841e-4f);
    p = fma(p, f, set1(1.3888888888888889e-3f));
    p = fma(p, f, set1(8.3333333333333333e-3f));
    p = fma(p, f, set1(4.1666666666666667e-2f));
    p = fma(p, f, set1(1.6666666666666667e-1f));
    p = fma(p, f, set1(0.5f));
    p = fma(p, f, set1(1.0f));
    p = fma(p, f, set1(1.0f));
    return where_less(x, low, set1(0.0f), scale2(p, n));
}

OCTAVO_INLINE V sigmoidv(V x) { return set1(1.0f) / (set1(1.0f) + expv(set1(0.0f) - x)); }
// 1 - 2 / (e^2x + 1); a Taylor series near 0, where that cancels.
OCTAVO_INLINE V tanhv(V x) {
    const V big = set1(1.0f) - set1(2.0f) / (expv(x + x) + set1(1.0f));
    const V x2 = x * x;
    const V series = fma(x2, fma(x2, fma(x2, set1(-17.0f / 315), set1(2.0f / 15)), set1(-1.0f / 3)), set1(1.0f));
    return where_less(abs(x), set1(0.15f), x * series, big);
}

// [first, last) of n items for thread `tid` of `threads`.
struct Share {
    int64_t first, last;
};
OCTAVO_INLINE Share share(int64_t n, int tid, int threads) { return {n * tid / threads, n * (tid + 1) / threads}; }

}  // namespace
}  // namespace octavo::OCTAVO_ISA
