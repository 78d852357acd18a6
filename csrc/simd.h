// Sixteen float lanes on every instruction set, for the linear kernels. Included by kernel files only.
//
// Each function is one rounding: fma() is fused where the set has it (and a product and a sum where
// it does not: the generic set), everything else is the plain IEEE operation, so that a result
// depends on the set but never on the tile that a lane happens to be in.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo::OCTAVO_ISA {
namespace {

OCTAVO_INLINE float read_f32(const char* p) { float v; std::memcpy(&v, p, 4); return v; }
OCTAVO_INLINE int32_t read_i32(const char* p) { int32_t v; std::memcpy(&v, p, 4); return v; }

#if defined(__AVX512F__)

struct vf { __m512 v; };
OCTAVO_INLINE vf zero() { return {_mm512_setzero_ps()}; }
OCTAVO_INLINE vf bcast(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE vf load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
OCTAVO_INLINE void store(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE vf fma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE vf add(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE vf sub(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE vf mul(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE vf div(vf a, vf b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE vf min(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE vf max(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }
// 2^n for a whole number n in [-126, 127].
OCTAVO_INLINE vf exp2_whole(vf n) {
    __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(i, 23))};
}
// a where |x| < limit, else b.
OCTAVO_INLINE vf select_below(vf x, float limit, vf a, vf b) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x.v), _mm512_set1_ps(limit), _CMP_LT_OQ), b.v, a.v)};
}

#elif defined(__AVX2__)

struct vf { __m256 a, b; };
OCTAVO_INLINE vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OCTAVO_INLINE vf bcast(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
OCTAVO_INLINE vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE vf load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
OCTAVO_INLINE void store(float* p, vf x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
OCTAVO_INLINE vf fma(vf x, vf y, vf z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
OCTAVO_INLINE vf add(vf x, vf y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
OCTAVO_INLINE vf sub(vf x, vf y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
OCTAVO_INLINE vf mul(vf x, vf y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
OCTAVO_INLINE vf div(vf x, vf y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
OCTAVO_INLINE vf min(vf x, vf y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
OCTAVO_INLINE vf max(vf x, vf y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
OCTAVO_INLINE __m256 exp2_whole8(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
OCTAVO_INLINE vf exp2_whole(vf n) { return {exp2_whole8(n.a), exp2_whole8(n.b)}; }
OCTAVO_INLINE __m256 select_below8(__m256 x, float limit, __m256 a, __m256 b) {
    __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(magnitude, _mm256_set1_ps(limit), _CMP_LT_OQ));
}
OCTAVO_INLINE vf select_below(vf x, float limit, vf a, vf b) {
    return {select_below8(x.a, limit, a.a, b.a), select_below8(x.b, limit, a.b, b.b)};
}

#else  // four vectors of four: NEON, or whatever the compiler makes of them

#if defined(__ARM_NEON)
typedef float32x4_t v4;
typedef int32x4_t i4;
#else
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
#endif
struct vf { v4 p[4]; };

#define OCTAVO_EACH(expression)                  \
    vf z;                                        \
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) z.p[i] = expression; \
    return z
OCTAVO_INLINE v4 splat(float x) { return v4{x, x, x, x}; }
OCTAVO_INLINE v4 load4(const float* p) { v4 v; std::memcpy(&v, p, 16); return v; }
OCTAVO_INLINE vf zero() { OCTAVO_EACH(splat(0)); }
OCTAVO_INLINE vf bcast(float x) { OCTAVO_EACH(splat(x)); }
OCTAVO_INLINE vf load(const float* p) { OCTAVO_EACH(load4(p + 4 * i)); }
OCTAVO_INLINE void store(float* p, vf a) { std::memcpy(p, &a, 64); }
OCTAVO_INLINE vf add(vf a, vf b) { OCTAVO_EACH(a.p[i] + b.p[i]); }
OCTAVO_INLINE vf sub(vf a, vf b) { OCTAVO_EACH(a.p[i] - b.p[i]); }
OCTAVO_INLINE vf mul(vf a, vf b) { OCTAVO_EACH(a.p[i] * b.p[i]); }
OCTAVO_INLINE vf div(vf a, vf b) { OCTAVO_EACH(a.p[i] / b.p[i]); }
OCTAVO_INLINE v4 pick(i4 mask, v4 a, v4 b) { return (v4)(((i4)a & mask) | ((i4)b & ~mask)); }
OCTAVO_INLINE vf min(vf a, vf b) { OCTAVO_EACH(pick((i4)(a.p[i] < b.p[i]), a.p[i], b.p[i])); }
OCTAVO_INLINE vf max(vf a, vf b) { OCTAVO_EACH(pick((i4)(a.p[i] > b.p[i]), a.p[i], b.p[i])); }
#if defined(__ARM_NEON)
OCTAVO_INLINE vf fma(vf a, vf b, vf c) { OCTAVO_EACH(vfmaq_f32(c.p[i], a.p[i], b.p[i])); }
OCTAVO_INLINE vf load_f16(const uint16_t* p) {
    OCTAVO_EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
#else
OCTAVO_INLINE vf fma(vf a, vf b, vf c) { OCTAVO_EACH(a.p[i] * b.p[i] + c.p[i]); }
// f16 to f32 exactly, subnormals and infinities included, without a branch.
OCTAVO_INLINE i4 load4_u16(const uint16_t* p) { return i4{p[0], p[1], p[2], p[3]}; }
OCTAVO_INLINE v4 widen_f16(i4 h) {
    i4 sign = (h & 0x8000) << 16;
    i4 body = (h & 0x7fff) << 13;                          // exponent and mantissa in f32's places
    v4 scaled = (v4)body * splat(5.192296858534828e+33f);  // 2^112: moves the exponent's bias
    i4 special = (i4)((h & 0x7c00) == 0x7c00);
    i4 bits = (i4)scaled | (special & 0x7f800000);
    return (v4)(bits | sign);
}
OCTAVO_INLINE vf load_f16(const uint16_t* p) { OCTAVO_EACH(widen_f16(load4_u16(p + 4 * i))); }
#endif
// Adding the magic number leaves the whole number in the low bits of the mantissa.
OCTAVO_INLINE v4 exp2_whole4(v4 n) {
    i4 whole = (i4)(n + splat(12582912.0f)) - 0x4B400000;
    return (v4)((whole + 127) << 23);
}
OCTAVO_INLINE vf exp2_whole(vf n) { OCTAVO_EACH(exp2_whole4(n.p[i])); }
OCTAVO_INLINE v4 select_below4(v4 x, float limit, v4 a, v4 b) {
    v4 magnitude = (v4)((i4)x & 0x7fffffff);
    return pick((i4)(magnitude < splat(limit)), a, b);
}
OCTAVO_INLINE vf select_below(vf x, float limit, vf a, vf b) {
    OCTAVO_EACH(select_below4(x.p[i], limit, a.p[i], b.p[i]));
}
#undef OCTAVO_EACH

#endif

// e^x to about 1e-7: x = n ln 2 + r, a polynomial of degree 7 in r (Taylor: |r| <= 0.347 leaves
// 6e-9), times 2^n. Arguments beyond +-87 are clamped.
OCTAVO_INLINE vf exp_lanes(vf x) {
    x = min(max(x, bcast(-87.0f)), bcast(87.0f));
    const vf magic = bcast(12582912.0f);  // adding and subtracting it rounds to the nearest whole number
    vf n = sub(add(mul(x, bcast(1.44269504088896341f)), magic), magic);
    vf r = fma(n, bcast(-0.693359375f), x);      // the high part of ln 2 has 10 bits: n times it is exact
    r = fma(n, bcast(2.12194440054690583e-4f), r);
    vf p = bcast(1.9841269841e-4f);
    p = fma(p, r, bcast(1.3888888889e-3f));
    p = fma(p, r, bcast(8.3333333333e-3f));
    p = fma(p, r, bcast(4.1666666667e-2f));
    p = fma(p, r, bcast(1.6666666667e-1f));
    p = fma(p, r, bcast(0.5f));
    p = fma(p, r, bcast(1.0f));
    p = fma(p, r, bcast(1.0f));
    return mul(p, exp2_whole(n));
}

// x / (1 + e^(-scale x)): silu, and the logistic form of gelu's tanh approximation.
OCTAVO_INLINE vf times_sigmoid(vf x, vf argument) {
    return div(x, add(bcast(1.0f), exp_lanes(sub(zero(), argument))));
}
OCTAVO_INLINE vf silu(vf x) { return times_sigmoid(x, x); }
// 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
OCTAVO_INLINE vf gelu_tanh(vf x) {
    vf cubic = fma(mul(mul(x, x), x), bcast(0.044715f), x);
    return times_sigmoid(x, mul(cubic, bcast(1.59576912160573071f)));
}
// 1 - 2 / (e^2z + 1) cancels for small z; there the odd Taylor series to z^13 is good to 1e-7 up to 0.5.
OCTAVO_INLINE vf tanh_lanes(vf z) {
    vf big = sub(bcast(1.0f), div(bcast(2.0f), add(exp_lanes(add(z, z)), bcast(1.0f))));
    vf s = mul(z, z);
    vf p = bcast(3.5921280366e-3f);
    p = fma(p, s, bcast(-8.8632355299e-3f));
    p = fma(p, s, bcast(2.1869488536e-2f));
    p = fma(p, s, bcast(-5.3968253968e-2f));
    p = fma(p, s, bcast(1.3333333333e-1f));
    p = fma(p, s, bcast(-3.3333333333e-1f));
    vf small = fma(mul(mul(p, s), z), bcast(1.0f), z);
    return select_below(z, 0.5f, small, big);
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA
