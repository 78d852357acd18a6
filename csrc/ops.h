// The tables of every family of kernels but linear, and what their ops keep in Op::w, i and f.
// A kernel is called by all threads of the team and takes its own fixed share of rows or tasks.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "op.h"

namespace octavo {

using OpFn = void (*)(const Op&, const Step&, const Ctx&);

enum Activation : int32_t { ACT_SILU = 0, ACT_GELU_TANH, ACT_GELU_ERF, ACT_RELU, ACT_RELU2, ACT_SIGMOID, ACT_TANH, ACT_QUICK_GELU, NUM_ACTIVATIONS };

// Dequantises one row of `cols` elements of a weight.
using DequantRowFn = void (*)(int type, const void* row, float* out, int64_t cols);

struct ElementwiseKernels {
    OpFn embed;        // out x; w[0] rows, w[1] EmbedTable; f[0] scale
    OpFn add;          // in a, b; out y
    OpFn mul;          // in a, b; out y
    OpFn scale;        // in x; out y; f[0] factor
    OpFn soft_cap;     // in x; out y; f[0] cap: cap * tanh(x / cap)
    OpFn act;          // in x; out y; i[0] Activation
    OpFn silu_mul;     // in gate, up; out y
    OpFn gelu_mul;     // in gate, up; out y (tanh approximation)
    OpFn gather_rows;  // in x (tokens); out y (samples)
};

// A table of rows in the source file's own format: no second copy of the embedding in memory.
struct EmbedTable {
    int32_t type = 0;             // as `dequant` knows it
    const char* data = nullptr;
    int64_t row_bytes = 0;
    int64_t rows = 0;
    DequantRowFn dequant = nullptr;
};

struct NormKernels {
    OpFn rms_norm;      // in x; out y; w[0] weight; f[0] eps, f[1] offset added to the weight; i[0] group (0 = whole row)
    OpFn add_rms_norm;  // in x, residual; out sum, y; the rest as rms_norm
    OpFn layer_norm;    // in x; out y; w[0] weight, w[1] bias or null; f[0] eps
};

// cos and sin of every position, computed in double when a page of positions is first used. Content
// depends on nothing but the position, so it is the same whoever computes it.
class RopeTable {
public:
    static constexpr int PAGE = 64;  // positions

    RopeTable(const double* inv_freq, int pairs, double attention_factor, int max_positions);
    ~RopeTable();
    RopeTable(const RopeTable&) = delete;
    RopeTable& operator=(const RopeTable&) = delete;

    // [pairs] cosines, then [pairs] sines. 0 <= position < max_positions.
    // Inlined always: a copy compiled for one instruction set must not be what another set links to.
    __attribute__((always_inline)) const float* at(int position) const {
        const float* page = pages_[position / PAGE].load(std::memory_order_acquire);
        if (!page) page = fill(position / PAGE);
        return page + int64_t(position % PAGE) * 2 * pairs_;
    }
    int pairs() const { return pairs_; }
    int max_positions() const { return max_positions_; }

private:
    const float* fill(int page) const;

    int pairs_, max_positions_;
    double attention_factor_;
    double* inv_freq_;
    std::atomic<float*>* pages_;
    mutable std::mutex mutex_;
};

struct RopeKernels {
    OpFn rope;      // in q, k; out q', k' (may be the inputs); w[0] RopeTable; i[0] head_dim, i[1] rotary_dim, i[2] interleaved
    OpFn kv_write;  // in k, v; KVPlace
};

// Where the KV of a layer lies; the first six integers of kv_write and attend.
//
//   block = [layer in group][kv head][K | V], item = element bytes
//   bf16:  K [head_dim / 2][block_size][2]   V [block_size / 2][head_dim][2]
//   f32:   K [head_dim][block_size]          V [block_size][head_dim]
//
// Invariant kept by kv_write: in the 16 positions around a row's last token, V is zero behind that token,
// so that old content of a reused block (which may be Inf) never meets a probability of zero.
enum KVPlace : int { KV_GROUP = 0, KV_INDEX, KV_HEADS, KV_HEAD_DIM, KV_DTYPE, KV_FIRST_FREE };

// Partial results of a row whose context is shared out over threads, and each thread's private memory.
// One serves all attend ops of a program.
class AttendSpace {
public:
    static constexpr int MAX_THREADS = 1024;
    AttendSpace() = default;
    ~AttendSpace();
    AttendSpace(const AttendSpace&) = delete;
    AttendSpace& operator=(const AttendSpace&) = delete;

    // Memory of thread `tid`, 64-byte aligned, at least `bytes`; called by that thread alone. Content is lost
    // when it grows.
    __attribute__((always_inline)) char* own(int tid, size_t bytes) { return grown(parts_[tid], bytes); }
    __attribute__((always_inline)) const char* of(int tid) const { return parts_[tid].data; }
    // The same, for what several requests share.
    __attribute__((always_inline)) char* parties(int tid, size_t bytes) { return grown(party_parts_[tid], bytes); }
    __attribute__((always_inline)) const char* parties_of(int tid) const { return party_parts_[tid].data; }

private:
    struct alignas(64) Part { char* data = nullptr; size_t bytes = 0; };
    static char* grown(Part& part, size_t bytes);

    Part parts_[MAX_THREADS], party_parts_[MAX_THREADS];
};

constexpr int ATTEND_ROWS = 24;           // rows (query token x head) of a tile, unless one token has more
constexpr int ATTEND_MAX_KV_HEADS = 512;
// Scratch (Ctx::scratch) that attend on vectors needs in each thread.
inline size_t attend_scratch_bytes(int64_t per_kv, int64_t head_dim) {
    const int64_t rows = per_kv > ATTEND_ROWS ? per_kv : ATTEND_ROWS;
    return size_t(rows * (head_dim + 2) + 16 + rows * (512 + 16) + rows * (head_dim + 16)) * 4 + 256;
}

struct AttentionKernels {
    // in q [T, heads * head_dim]; out y; w[0] sinks [heads] or null, w[1] AttendSpace;
    // KVPlace, i[KV_FIRST_FREE] heads, + 1 window (0 = all); f[0] scale, f[1] softcap (0 = off)
    OpFn attend;
    size_t (*scratch_bytes)(int64_t per_kv, int64_t head_dim);  // Ctx::scratch that it needs
};

// SamplingBatch and StepOutput of executors/base.py as pointers. Row r of the logits belongs to entry r.
struct SamplerIO {
    int32_t vocab = 0;
    // in
    const float* temperature = nullptr;
    const int32_t* top_k = nullptr;
    const float* top_p = nullptr;
    const float* min_p = nullptr;
    const uint64_t* seed = nullptr;
    const int64_t* position = nullptr;
    const float* repetition = nullptr;
    const float* presence = nullptr;
    const float* frequency = nullptr;
    const int32_t* penalty_row = nullptr;
    const int32_t* counts = nullptr;
    const uint32_t* seen = nullptr;
    int64_t counts_stride = 0;  // elements
    int64_t seen_stride = 0;
    const int32_t* bias_start = nullptr;
    const int32_t* bias_ids = nullptr;
    const float* bias_values = nullptr;
    const int32_t* mask_row = nullptr;
    const uint32_t* masks = nullptr;
    int64_t masks_stride = 0;
    bool refused = false;         // rows with masks have drawn without them, in vain
    const int32_t* num_logprobs = nullptr;
    bool processed_logprobs = false;
    bool reports_logits = false;  // logits instead of log-probabilities, wherever those are given
    const int32_t* chosen_start = nullptr;  // [S + 1] slices of chosen_ids, or null: nobody chose
    const int32_t* chosen_ids = nullptr;
    // out
    int32_t* token_ids = nullptr;    // -1: nothing is left to draw from, or the logits are not finite
    float* logprobs = nullptr;
    int32_t* ranks = nullptr;        // 1 + better tokens + equal ones of lower id
    int32_t* top_ids = nullptr;      // [S, top_stride]; unused places hold -1
    float* top_logprobs = nullptr;
    int64_t top_stride = 0;          // K
    float* chosen_logprobs = nullptr;  // of chosen_ids; -inf for one that cannot be drawn or does not exist
    // scoring of known tokens
    const int32_t* targets = nullptr;
    float* score_logprobs = nullptr;
    int32_t* score_ranks = nullptr;
    int32_t* score_top_ids = nullptr;
    float* score_top_logprobs = nullptr;
    int32_t score_top = 0;
};

// Scratch (Ctx::scratch) that the sampler needs in each thread.
inline size_t sampler_scratch_bytes(int64_t vocab) { return size_t(vocab) * 13 + 65536; }

// The uniform number of a draw, in [0, 1): Philox4x32-10 with counter (position, 0, 0) and key seed,
// the top 53 bits of its first two words.
double philox_uniform(uint64_t seed, uint64_t position);

// Rows of logits, and the largest of every SAMPLER_CHUNK of a row (NaN if one of them is): in a step they are found
// while the logits are still in the caches. Without `maxima` the sampler finds them itself.
constexpr int SAMPLER_CHUNK = 64;
constexpr int LOGITS_ROWS = 64;  // rows of logits that exist at once
struct Logits {
    float* data = nullptr;
    int64_t stride = 0;          // floats
    float* maxima = nullptr;     // [rows, maxima_stride]
    int64_t maxima_stride = 0;

    float* row(int64_t i) const { return data + i * stride; }
    const float* maxima_of(int64_t i) const { return maxima ? maxima + i * maxima_stride : nullptr; }
};

struct SamplerKernels {
    // Fills in the maxima of columns [first, last); first is a multiple of SAMPLER_CHUNK, last one too or `vocab`.
    void (*scan_columns)(const Logits& logits, int64_t rows, int64_t vocab, int64_t first, int64_t last);
    // Row i of `logits` belongs to entry first + i of `io`. The rows are shared out over the threads of `ctx`; no barrier
    // inside. sample_rows overwrites the logits.
    void (*sample_rows)(const SamplerIO& io, const Logits& logits, int64_t first, int64_t rows, const Ctx& ctx);
    void (*score_rows)(const SamplerIO& io, const Logits& logits, int64_t first, int64_t rows, const Ctx& ctx);
};

}  // namespace octavo
