// The recorded program: arena, ops, metadata block, one run a step. Knows no model and no op family.
//
// Python records ops once (bind_*.cpp), fills the metadata arrays in place and calls run(T, R, S, P).
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats.h"
#include "isa.h"
#include "memory.h"
#include "op.h"
#include "ops.h"
#include "team.h"

namespace octavo {

// Raised as octavo.errors.KernelFault.
struct Fault : std::runtime_error {
    Fault(const std::string& message, std::string op_name, int program_position)
        : std::runtime_error(message), op(std::move(op_name)), position(program_position) {}
    std::string op;
    int position;
};

// A view of the arena and what its rows count. Python's handle of a buffer.
struct Buffer {
    View view;
    int32_t rows = ROWS_TOKENS;
    int64_t offset = 0;  // of view.data in the arena
};

struct ProgramOptions {
    int max_tokens = 0;      // T <= max_tokens
    int max_rows = 0;        // R, S <= max_rows; S + P <= max_rows + max_tokens
    int num_groups = 1;      // KV groups
    int table_width = 0;     // blocks a row may have
    int block_size = 16;     // tokens
    int vocab = 0;
    int num_threads = 1;
    std::string isa;
    int64_t arena_bytes = 0;
};

// Prepared rows of one buffer at a time (formats.h), shared by the linears that read it.
struct Operand {
    OperandKind kind = OPERAND_F32;
    int64_t groups = 0;
    int32_t rows = ROWS_TOKENS;
    int64_t stride = 0;
    std::shared_ptr<char> data;
    Buffer source;
    bool valid = false;
};

// A named metadata array that Python sees as numpy, in place.
struct Array {
    char* data = nullptr;
    char type = 'i';  // i: int32, I: uint32, l: int64, L: uint64, f: float32
    std::vector<size_t> shape;
};

class Program {
public:
    explicit Program(const ProgramOptions& options);
    ~Program();

    const ProgramOptions& options() const { return options_; }
    const KernelTable& kernels() const { return *kernels_; }

    // Columns of the arena: row r starts at offset + r * stride bytes. Throws std::out_of_range
    // when the first row does not fit the arena.
    Buffer view(int64_t offset, int64_t stride, int width, int rows = ROWS_TOKENS) const;

    // Appends an op; sets its position. Buffers in `op.out` count as written from here on.
    int add_op(Op op, const std::string& name);

    // Memory that lives as long as the program. floats() copies `n` values and zero-fills up to `padded`.
    char* allocate(size_t bytes);
    const float* floats(const float* values, size_t n, size_t padded = 0);
    void keep(std::shared_ptr<const void> owner) { kept_.push_back(std::move(owner)); }
    void keep_as(const std::string& name, std::shared_ptr<const void> owner) { named_[name] = std::move(owner); }
    // Every thread gets at least this much Ctx::scratch.
    void need_scratch(size_t bytes);

    // The operand buffer for `x` in layout `kind`. `fresh` says whether it holds x already, that is, x was
    // prepared there and not written since; otherwise the op that asked must prepare it.
    const Operand& operand(const Buffer& x, OperandKind kind, bool& fresh);
    // Positions that an op can take end here (rotary tables); the smallest limit counts.
    void limit_positions(int64_t end) { if (end < max_position_) max_position_ = end; }

    // A metadata array, made on the first call. Zeroed. The second form throws std::invalid_argument for an
    // unknown name.
    Array& array(const std::string& name, char type, std::vector<size_t> shape);
    Array& array(const std::string& name);
    std::vector<std::string> array_names() const;
    template <class T> T* data(const std::string& name) { return reinterpret_cast<T*>(array(name).data); }

    // What the sampler reads and writes. Fixed-size fields point into the arrays above; the rest is set by
    // Python before a step (bind_program.cpp).
    SamplerIO sampler;
    // Where the logits op writes the logits of all S + P rows ([S + P, vocab] f32) instead of sampling; or null.
    float* logits_out = nullptr;

    // KV memory: block b at kv + b * block_bytes. allocate_kv maps (and owns) huge pages.
    void set_kv(char* kv, int64_t block_bytes, int64_t num_blocks, std::shared_ptr<const void> owner);
    void allocate_kv(int64_t block_bytes, int64_t num_blocks);
    char* kv() const { return step_.kv; }
    int64_t block_bytes() const { return step_.block_bytes; }
    int64_t num_blocks() const { return num_blocks_; }
    // Tokens that a query of each group sees (0 = all): blocks behind the window may be -1.
    void set_windows(std::vector<int> windows);

    // One step. Throws Fault; the program stays usable afterwards.
    void run(int T, int R, int S, int P);
    // The step before once more, each row one token further: the token that it drew is computed, and the next one drawn.
    // That step had `rows` rows of one token, all of which drew. Throws Fault, std::invalid_argument.
    void run_on(int rows);
    // Draws again for sampling rows of the step before, whose logits are kept (as long as it sampled at most
    // LOGITS_ROWS of them, and edited none of these). Throws std::invalid_argument.
    void redraw(const std::vector<int>& rows);
    using Redraw = std::function<void(const std::vector<int>& rows, const Ctx& ctx)>;
    void set_redraw(Redraw redraw) { redraw_ = std::move(redraw); }
    // A kernel reports a fault of its op in row `row` (any thread; the first one wins).
    void report(const Op& op, int row);

    const Step& step() const { return step_; }
    void profile(bool on);
    struct OpTime { std::string name; int64_t runs; int64_t ns; };
    std::vector<OpTime> times() const;
    const std::vector<std::string>& names() const { return names_; }
    // Whether the team may use fewer threads than it has, where that gets more done. Results do not depend on it.
    void set_adaptive(bool on) { adaptive_ = on, team_.reset(); }
    bool adaptive() const { return adaptive_; }
    Waits waits() const { return team_ ? team_->waits() : Waits(); }
    void reset_waits() { if (team_) team_->reset_waits(); }
    int64_t arena_bytes() const { return options_.arena_bytes; }
    int64_t operand_bytes() const { return operand_bytes_; }
    int64_t scratch_bytes() const { return int64_t(scratch_bytes_) * options_.num_threads; }

private:
    void check_step(int T, int R, int S, int P) const;
    void check_tables(int R) const;
    void execute();

    ProgramOptions options_;
    const KernelTable* kernels_;
    std::shared_ptr<Memory> arena_;
    std::vector<Op> ops_;
    std::vector<std::string> names_;
    std::vector<std::shared_ptr<const void>> kept_;
    std::map<std::string, std::shared_ptr<const void>> named_;
    std::vector<std::unique_ptr<Operand>> operands_;
    std::map<std::string, Array> arrays_;
    std::vector<int> windows_;
    Step step_;
    int64_t num_blocks_ = 0;
    int64_t max_position_ = int64_t(1) << 40;
    int64_t operand_bytes_ = 0;
    size_t scratch_bytes_ = 1 << 16;
    std::unique_ptr<Team> team_;
    std::atomic<int64_t> fault_{-1};
    bool profile_ = false, adaptive_ = false;
    Redraw redraw_;
    std::vector<int64_t> ns_, runs_;
};

}  // namespace octavo
