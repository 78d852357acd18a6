// Exact integer products of int8 operands and packed w8 or w4 weights, 16 columns at a time, on every
// instruction set. Included by linear_kernels.cpp only.
#pragma once
#include "formats.h"
#include "lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

enum Source { FROM_W8, FROM_W4, FROM_EXPANDED_W4 };

// A w4 block whose nibbles are bytes and whose scales are floats: float scale[32], float min[32],
// u8 [k / 4][col][4]. Made once per block when many rows use it.
constexpr int EXPANDED_RECORD = 2 * 4 * BLOCK_COLS + GROUP * BLOCK_COLS;

constexpr int record_bytes(Source s) { return s == FROM_W8 ? W8_RECORD : s == FROM_W4 ? W4_RECORD : EXPANDED_RECORD; }
constexpr int head_bytes(Source s) { return s == FROM_W8 ? 2 * BLOCK_COLS : s == FROM_W4 ? 4 * BLOCK_COLS : 8 * BLOCK_COLS; }

template <Source S>
OCTAVO_INLINE V load_scale(const char* record, int which, int h) {
    if constexpr (S == FROM_EXPANDED_W4) return load(reinterpret_cast<const float*>(record) + which * BLOCK_COLS + 16 * h);
    else return load_f16(reinterpret_cast<const uint16_t*>(record) + which * BLOCK_COLS + 16 * h);
}

// Each set defines: Quad (16 columns x 4 k of unsigned weights, ready to multiply), Sums (16 integer sums
// in progress), load_quad / split_pair, dot, and `scaled`: float(sum) * scale, rounded once. For w8
// the sum is corrected by start - MAGIC_BITS.

#if defined(__AVX512VNNI__)

struct Quad { __m512i v; };
struct Sums { __m512i v; };
template <Source S>
OCTAVO_INLINE Sums begin(const GroupScale& g) { return {_mm512_set1_epi32(S == FROM_W8 ? g.start : MAGIC_BITS)}; }
template <Source S>
OCTAVO_INLINE Quad load_quad(const char* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE void split_pair(const char* p, Quad& low, Quad& high) {
    const __m512i w = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
    low.v = _mm512_and_si512(w, mask);
    high.v = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
}
struct Value { __m512i v; };
OCTAVO_INLINE Value load_value(const char* p) { return {_mm512_set1_epi32(read_i32(p))}; }
OCTAVO_INLINE void dot(Sums& s, Quad w, Value x) { s.v = _mm512_dpbusd_epi32(s.v, w.v, x.v); }
template <Source S>
OCTAVO_INLINE V scaled(Sums s, const GroupScale& g) {
    return fma(V{_mm512_castsi512_ps(s.v)}, set1(g.scale), set1(g.shift));
}

#elif defined(__AVX2__)

// Products of a nibble (0..15) and an int8 fit 16 bits, and so does the sum of a group's eight quads
// (8 x 2 x 15 x 127 = 30,480): vpmaddubsw never saturates. w8's bytes are two nibbles: low + 16 x high.
#if defined(__AVX512BW__)
struct vi { __m512i v; };
OCTAVO_INLINE vi load_bytes(const char* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE vi splat32(int32_t x) { return {_mm512_set1_epi32(x)}; }
OCTAVO_INLINE vi low_nibbles(vi w) { return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))}; }
OCTAVO_INLINE vi high_nibbles(vi w) { return low_nibbles({_mm512_srli_epi16(w.v, 4)}); }
OCTAVO_INLINE vi multiply_add(vi acc, vi w, vi x) { return {_mm512_add_epi16(acc.v, _mm512_maddubs_epi16(w.v, x.v))}; }
OCTAVO_INLINE vi widen_times(vi acc, int factor) { return {_mm512_madd_epi16(acc.v, _mm512_set1_epi16(short(factor)))}; }
OCTAVO_INLINE vi add32(vi a, vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
OCTAVO_INLINE V as_float(vi a) { return {_mm512_cvtepi32_ps(a.v)}; }
#else
struct vi { __m256i a, b; };
OCTAVO_INLINE vi load_bytes(const char* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
OCTAVO_INLINE vi splat32(int32_t x) { const __m256i v = _mm256_set1_epi32(x); return {v, v}; }
OCTAVO_INLINE vi low_nibbles(vi w) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(w.a, mask), _mm256_and_si256(w.b, mask)};
}
OCTAVO_INLINE vi high_nibbles(vi w) { return low_nibbles({_mm256_srli_epi16(w.a, 4), _mm256_srli_epi16(w.b, 4)}); }
OCTAVO_INLINE vi multiply_add(vi acc, vi w, vi x) {
    return {_mm256_add_epi16(acc.a, _mm256_maddubs_epi16(w.a, x.a)), _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(w.b, x.b))};
}
OCTAVO_INLINE vi widen_times(vi acc, int factor) {
    const __m256i f = _mm256_set1_epi16(short(factor));
    return {_mm256_madd_epi16(acc.a, f), _mm256_madd_epi16(acc.b, f)};
}
OCTAVO_INLINE vi add32(vi x, vi y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
OCTAVO_INLINE V as_float(vi x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
#endif

struct Quad { vi low, high; };  // high: w8 only
struct Sums { vi low, high; };
template <Source S>
OCTAVO_INLINE Sums begin(const GroupScale&) { return {splat32(0), splat32(0)}; }
template <Source S>
OCTAVO_INLINE Quad load_quad(const char* p) {
    const vi w = load_bytes(p);
    if constexpr (S == FROM_W8) return {low_nibbles(w), high_nibbles(w)};
    else return {w, w};
}
OCTAVO_INLINE void split_pair(const char* p, Quad& low, Quad& high) {
    const vi w = load_bytes(p);
    low.low = low_nibbles(w), high.low = high_nibbles(w);
    low.high = low.low, high.high = high.low;
}
struct Value { vi v; };
OCTAVO_INLINE Value load_value(const char* p) { return {splat32(read_i32(p))}; }
template <Source S>
OCTAVO_INLINE void dot_planes(Sums& s, const Quad& w, const Value& x) {
    s.low = multiply_add(s.low, w.low, x.v);
    if constexpr (S == FROM_W8) s.high = multiply_add(s.high, w.high, x.v);
}
template <Source S>
OCTAVO_INLINE V scaled(const Sums& s, const GroupScale& g) {
    vi total = widen_times(s.low, 1);
    if constexpr (S == FROM_W8) total = add32(add32(total, widen_times(s.high, 16)), splat32(g.start - MAGIC_BITS));
    return as_float(total) * set1(g.scale);
}

#elif defined(__ARM_NEON)

struct Quad { int8x16_t p[4]; };
struct Sums { int32x4_t p[4]; };
template <Source S>
OCTAVO_INLINE Sums begin(const GroupScale&) {
    const int32x4_t z = vdupq_n_s32(0);
    return {{z, z, z, z}};
}
template <Source S>
OCTAVO_INLINE Quad load_quad(const char* p) {
    Quad q;
    OCTAVO_UNROLL for (int i = 0; i < 4; i++) {
        const uint8x16_t w = vld1q_u8(reinterpret_cast<const uint8_t*>(p) + 16 * i);
        // The +128 of w8 flips the sign bit: flipping it back gives the signed byte.
        q.p[i] = vreinterpretq_s8_u8(S == FROM_W8 ? veorq_u8(w, vdupq_n_u8(128)) : w);
    }
    return q;
}
OCTAVO_INLINE void split_pair(const char* p, Quad& low, Quad& high) {
    OCTAVO_UNROLL for (int i = 0; i < 4; i++) {
        const uint8x16_t w = vld1q_u8(reinterpret_cast<const uint8_t*>(p) + 16 * i);
        low.p[i] = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15)));
        high.p[i] = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
    }
}
struct Value { int8x16_t v; };
OCTAVO_INLINE Value load_value(const char* p) { return {vreinterpretq_s8_s32(vdupq_n_s32(read_i32(p)))}; }
OCTAVO_INLINE int32x4_t dot4(int32x4_t acc, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(acc, w, x);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_s8(vget_high_s8(w), vget_high_s8(x));
    return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
OCTAVO_INLINE void dot(Sums& s, const Quad& w, const Value& x) {
    OCTAVO_UNROLL for (int i = 0; i < 4; i++) s.p[i] = dot4(s.p[i], w.p[i], x.v);
}
template <Source S>
OCTAVO_INLINE V scaled(const Sums& s, const GroupScale& g) {
    V f;
    OCTAVO_UNROLL for (int i = 0; i < 4; i++) f.p[i] = (f4)vcvtq_f32_s32(s.p[i]);
    return f * set1(g.scale);
}

#else

struct Quad { uint8_t v[64]; };
struct Sums { int32_t v[16]; };
template <Source S>
OCTAVO_INLINE Sums begin(const GroupScale& g) {
    Sums s;
    for (int i = 0; i < 16; i++) s.v[i] = S == FROM_W8 ? g.start - MAGIC_BITS : 0;
    return s;
}
template <Source S>
OCTAVO_INLINE Quad load_quad(const char* p) { Quad q; std::memcpy(q.v, p, 64); return q; }
OCTAVO_INLINE void split_pair(const char* p, Quad& low, Quad& high) {
    for (int i = 0; i < 64; i++) {
        low.v[i] = uint8_t(p[i]) & 15;
        high.v[i] = uint8_t(p[i]) >> 4;
    }
}
struct Value { int8_t v[4]; };
OCTAVO_INLINE Value load_value(const char* p) { Value x; std::memcpy(x.v, p, 4); return x; }
OCTAVO_INLINE void dot(Sums& s, const Quad& w, const Value& x) {
    for (int i = 0; i < 16; i++) {
        int32_t sum = 0;
        for (int j = 0; j < 4; j++) sum += int32_t(w.v[4 * i + j]) * x.v[j];
        s.v[i] += sum;
    }
}
template <Source S>
OCTAVO_INLINE V scaled(const Sums& s, const GroupScale& g) {
    float f[16];
    for (int i = 0; i < 16; i++) f[i] = float(s.v[i]);
    return load(f) * set1(g.scale);
}

#endif

template <Source S>
OCTAVO_INLINE void accumulate(Sums& s, const Quad& w, const Value& x) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
    dot_planes<S>(s, w, x);
#else
    dot(s, w, x);
#endif
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA
