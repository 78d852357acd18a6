// What every native op sees. One file per op family; each kernel file is compiled once per
// instruction set (its symbols live in namespace OCTAVO_ISA, see isa.h) and knows no model.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

struct View {            // rows of floats (or int32) in the arena; row r starts at data + r * stride
    char*   data = nullptr;
    int64_t stride = 0;  // bytes
    int32_t width = 0;   // elements
    float*       f32(int64_t r) const { return reinterpret_cast<float*>(data + r * stride); }
    int32_t*     i32(int64_t r) const { return reinterpret_cast<int32_t*>(data + r * stride); }
    explicit operator bool() const { return data != nullptr; }
};

// One step, as the recorded program reads it. All arrays belong to the metadata block.
struct Step {
    int32_t T = 0, R = 0, S = 0;            // tokens, rows (requests), sampling rows
    int32_t P = 0;                          // scored prompt positions: rows S .. S + P of "samples" buffers
    const int32_t* token_ids = nullptr;     // [T]
    const int32_t* positions = nullptr;     // [T]
    const int32_t* row_starts = nullptr;    // [R + 1]
    const int32_t* context_lens = nullptr;  // [R] tokens in KV before this step
    const int32_t* block_tables = nullptr;  // [G][max_rows][table_width]
    int64_t group_stride = 0;               // elements between groups of block_tables
    int32_t table_width = 0;                // elements between rows of block_tables
    int32_t block_size = 0;
    char*   kv = nullptr;                   // block b starts at kv + b * block_bytes
    int64_t block_bytes = 0;
    const int32_t* sample_tokens = nullptr; // [S + P] sampled, then scored tokens
    const int32_t* token_rows = nullptr;    // [T] row of each token (filled by the executor)
};

class Team;  // team.h: the thread team; barrier(tid) waits for all

struct Ctx {              // one thread's view of the step
    int tid = 0, n = 1;   // this thread, threads in the team
    Team* team = nullptr;
    char* scratch = nullptr;  // private to the thread, 64-byte aligned
    size_t scratch_bytes = 0;
    void barrier() const;     // team.cpp
};

constexpr int MAX_VIEWS = 6;
struct Op {
    // The kernel. Called by every thread of the team with its own Ctx; the executor puts a
    // barrier after each op, so a kernel only needs ctx.barrier() between its own phases.
    void (*fn)(const Op&, const Step&, const Ctx&) = nullptr;
    View in[MAX_VIEWS], out[MAX_VIEWS];
    const void* w[4] = {};    // packed weights or float vectors, by op
    int32_t i[16] = {};       // integer attributes, by op
    float   f[8] = {};        // float attributes, by op
    int32_t rows = 0;                // what the leading dimension counts: ROWS_TOKENS or ROWS_SAMPLES
    int32_t kind = 0, position = 0;  // for faults and the profile
};

enum Rows : int32_t { ROWS_TOKENS = 0, ROWS_SAMPLES = 1 };
// Rows of the op's buffers in this step.
inline int32_t num_rows(const Op& op, const Step& step) {
    return op.rows == ROWS_SAMPLES ? step.S + step.P : step.T;
}

enum KVType : int32_t { KV_F32 = 0, KV_BF16 = 1 };

}  // namespace octavo
