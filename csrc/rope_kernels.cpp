// Rotary embedding, and the write of new K and V into the cache.
#include "isa.h"
#include "ops.h"
#include "lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

OCTAVO_INLINE void rotate_halves(const float* x, float* y, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; i += LANES) {
        const int n = half - i;
        const V a = load_upto(x + i, n), b = load_upto(x + half + i, n);
        const V c = load_upto(cos + i, n), s = load_upto(sin + i, n);
        store_upto(y + i, a * c - b * s, n);
        store_upto(y + half + i, b * c + a * s, n);
    }
}

OCTAVO_INLINE void rotate_pairs(const float* x, float* y, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        const float u = a * cos[i], v = b * sin[i], w = b * cos[i], z = a * sin[i];
        y[2 * i] = u - v;
        y[2 * i + 1] = w + z;
    }
}

void rope(const Op& op, const Step& step, const Ctx& ctx) {
    const auto* table = static_cast<const RopeTable*>(op.w[0]);
    const int head_dim = op.i[0], rotary_dim = op.i[1], half = rotary_dim / 2;
    const bool interleaved = op.i[2] != 0;
    const Share mine = share(step.T, ctx.tid, ctx.n);
    for (int64_t t = mine.first; t < mine.last; ++t) {
        const int last = table->max_positions() - 1, p = step.positions[t];
        const float* cos = table->at(p < 0 ? 0 : p > last ? last : p);
        const float* sin = cos + half;
        for (int j = 0; j < 2; ++j) {
            const float* x = op.in[j].f32(t);
            float* y = op.out[j].f32(t);
            for (int h = 0; h < op.in[j].width; h += head_dim) {
                if (interleaved) rotate_pairs(x + h, y + h, cos, sin, half);
                else rotate_halves(x + h, y + h, cos, sin, half);
                if (x != y && rotary_dim < head_dim)
                    std::memcpy(y + h + rotary_dim, x + h + rotary_dim, size_t(head_dim - rotary_dim) * 4);
            }
        }
    }
}

OCTAVO_INLINE uint32_t pair_bf16(float even, float odd) { return to_bf16(even) | uint32_t(to_bf16(odd)) << 16; }

// K of one token and head: element (d, position) of [d / 2][block_size][2].
OCTAVO_INLINE void put_k_bf16(const float* k, char* block, int slot, int block_size, int head_dim) {
    auto* out = reinterpret_cast<uint32_t*>(block) + slot;
    for (int d = 0; d < head_dim; d += 2, out += block_size) *out = pair_bf16(k[d], k[d + 1]);
}

// V of one token and head: 2-byte stores, since another thread may own the other half of each pair.
OCTAVO_INLINE void put_v_bf16(const float* v, char* block, int slot, int head_dim) {
    char* out = block + int64_t(slot / 2) * head_dim * 4;
#if defined(__AVX512BW__)
    const bool odd = slot & 1;
    for (int d = 0; d < head_dim; d += LANES) {
        const __m512i u = _mm512_castps_si512(_mm512_loadu_ps(v + d));
        const __m512i even_bit = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(even_bit, _mm512_set1_epi32(0x7fff))), 16);
        const __mmask16 nan = _mm512_cmp_ps_mask(_mm512_castsi512_ps(u), _mm512_castsi512_ps(u), _CMP_UNORD_Q);
        r = _mm512_mask_set1_epi32(r, nan, 0x7fc0);
        if (odd) _mm512_mask_storeu_epi16(out + d * 4, 0xaaaaaaaau, _mm512_slli_epi32(r, 16));
        else _mm512_mask_storeu_epi16(out + d * 4, 0x55555555u, r);
    }
#else
    auto* p = reinterpret_cast<uint16_t*>(out) + (slot & 1);
    for (int d = 0; d < head_dim; ++d) p[2 * d] = to_bf16(v[d]);
#endif
}

OCTAVO_INLINE void zero_v_bf16(char* block, int first, int last, int head_dim) {
    auto* v = reinterpret_cast<uint16_t*>(block);
    if (first < last && (first & 1)) {
        uint16_t* p = v + int64_t(first / 2) * head_dim * 2 + 1;
        for (int d = 0; d < head_dim; ++d) p[2 * d] = 0;
        ++first;
    }
    if (first < last) std::memset(v + int64_t(first / 2) * head_dim * 2, 0, size_t(last - first) * head_dim * 2);
}

OCTAVO_INLINE void put_k_f32(const float* k, char* block, int slot, int block_size, int head_dim) {
    auto* out = reinterpret_cast<float*>(block) + slot;
    for (int d = 0; d < head_dim; ++d, out += block_size) *out = k[d];
}

void kv_write(const Op& op, const Step& step, const Ctx& ctx) {
    const int heads = op.i[KV_HEADS], head_dim = op.i[KV_HEAD_DIM], block_size = step.block_size;
    const bool bf16 = op.i[KV_DTYPE] == KV_BF16;
    const int64_t half = int64_t(block_size) * head_dim * (bf16 ? 2 : 4);  // bytes of K or of V of a head
    const int32_t* tables = step.block_tables + op.i[KV_GROUP] * step.group_stride;
    const Share mine = share(int64_t(step.T) * heads, ctx.tid, ctx.n);
    for (int64_t j = mine.first; j < mine.last; ++j) {
        const int64_t t = j / heads, h = j % heads;
        const int64_t row = step.token_rows[t];
        const int position = step.context_lens[row] + int(t) - step.row_starts[row], slot = position % block_size;
        const int64_t id = tables[row * step.table_width + position / block_size];
        char* block = step.kv + id * step.block_bytes + (int64_t(op.i[KV_INDEX]) * heads + h) * 2 * half;
        const float* k = op.in[0].f32(t) + h * head_dim;
        const float* v = op.in[1].f32(t) + h * head_dim;
        if (bf16) {
            put_k_bf16(k, block, slot, block_size, head_dim);
            put_v_bf16(v, block + half, slot, head_dim);
        } else {
            put_k_f32(k, block, slot, block_size, head_dim);
            std::memcpy(block + half + int64_t(slot) * head_dim * 4, v, size_t(head_dim) * 4);
        }
        // The row's last token, in 16 positions that the row entered in this step: see KVPlace.
        const int group_end = (slot / 16 + 1) * 16;
        const bool last = t + 1 == step.row_starts[row + 1];
        const bool entered = step.context_lens[row] <= position / 16 * 16;
        if (last && entered && slot + 1 < group_end) {
            if (bf16) zero_v_bf16(block + half, slot + 1, group_end, head_dim);
            else std::memset(block + half + int64_t(slot + 1) * head_dim * 4, 0, size_t(group_end - slot - 1) * head_dim * 4);
        }
    }
}

}  // namespace

const RopeKernels& rope_kernels() {
    static constexpr RopeKernels table = {rope, kv_write};
    return table;
}

}  // namespace octavo::OCTAVO_ISA
