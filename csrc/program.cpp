#include "program.h"

#include <chrono>
#include <algorithm>
#include <cstring>

namespace octavo {

namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }
[[noreturn]] void bad_step(const std::string& message) { throw Fault(message, "step", -1); }
std::string str(int64_t n) { return std::to_string(n); }

size_t item_bytes(char type) { return type == 'l' || type == 'L' ? 8 : 4; }

// Bytes of the arena between a buffer's first and last element, whatever its number of rows.
bool overlap(const View& a, const View& b, int64_t rows) {
    auto end = [rows](const View& v) { return v.data + (rows - 1) * v.stride + int64_t(v.width) * 4; };
    if (a.data >= end(b) || b.data >= end(a)) return false;
    if (a.stride != b.stride || a.stride <= 0) return true;
    // Columns of one parent: the same rows, so only the columns decide.
    const int64_t apart = b.data - a.data;
    const int64_t shift = ((apart % a.stride) + a.stride) % a.stride;  // start of b within a row of a
    return shift < int64_t(a.width) * 4 || shift + int64_t(b.width) * 4 > a.stride;
}

}  // namespace

Program::Program(const ProgramOptions& o) : options_(o), kernels_(&kernel_table(o.isa)) {
    if (o.max_tokens < 1 || o.max_rows < 1 || o.num_groups < 1 || o.block_size < 1 || o.vocab < 0 || o.table_width < 0)
        refuse("max_tokens, max_rows, num_groups and block_size must be at least 1; vocab and table_width not negative");
    if (o.num_threads < 1 || o.num_threads > 1024) refuse("num_threads must be 1 to 1024, not " + str(o.num_threads));
    if (o.arena_bytes < 0) refuse("arena_bytes must not be negative");
    arena_ = std::make_shared<Memory>(size_t(o.arena_bytes));
    windows_.assign(size_t(o.num_groups), 0);

    const size_t T = size_t(o.max_tokens), R = size_t(o.max_rows);
    array("token_ids", 'i', {T});
    array("positions", 'i', {T});
    array("row_starts", 'i', {R + 1});
    array("context_lens", 'i', {R});
    array("block_tables", 'i', {size_t(o.num_groups), R, size_t(o.table_width)});
    array("sample_tokens", 'i', {T + R});
    array("token_rows", 'i', {T});
    step_.token_ids = data<int32_t>("token_ids");
    step_.positions = data<int32_t>("positions");
    step_.row_starts = data<int32_t>("row_starts");
    step_.context_lens = data<int32_t>("context_lens");
    step_.block_tables = data<int32_t>("block_tables");
    step_.sample_tokens = data<int32_t>("sample_tokens");
    step_.token_rows = data<int32_t>("token_rows");
    step_.group_stride = int64_t(R) * o.table_width;
    step_.table_width = o.table_width;
    step_.block_size = o.block_size;

    sampler.vocab = o.vocab;
    array("temperature", 'f', {R}), sampler.temperature = data<float>("temperature");
    array("top_k", 'i', {R}), sampler.top_k = data<int32_t>("top_k");
    array("top_p", 'f', {R}), sampler.top_p = data<float>("top_p");
    array("min_p", 'f', {R}), sampler.min_p = data<float>("min_p");
    array("seed", 'L', {R}), sampler.seed = data<uint64_t>("seed");
    array("position", 'l', {R}), sampler.position = data<int64_t>("position");
    array("repetition", 'f', {R}), sampler.repetition = data<float>("repetition");
    array("presence", 'f', {R}), sampler.presence = data<float>("presence");
    array("frequency", 'f', {R}), sampler.frequency = data<float>("frequency");
    array("penalty_row", 'i', {R}), sampler.penalty_row = data<int32_t>("penalty_row");
    array("bias_start", 'i', {R + 1}), sampler.bias_start = data<int32_t>("bias_start");
    array("chosen_start", 'i', {R + 1}), sampler.chosen_start = data<int32_t>("chosen_start");
    array("mask_row", 'i', {R}), sampler.mask_row = data<int32_t>("mask_row");
    array("num_logprobs", 'i', {R}), sampler.num_logprobs = data<int32_t>("num_logprobs");
    array("score_targets", 'i', {T}), sampler.targets = data<int32_t>("score_targets");
    array("sampled_ids", 'i', {R}), sampler.token_ids = data<int32_t>("sampled_ids");
    array("logprobs", 'f', {R}), sampler.logprobs = data<float>("logprobs");
    array("ranks", 'i', {R}), sampler.ranks = data<int32_t>("ranks");
    array("score_logprobs", 'f', {T}), sampler.score_logprobs = data<float>("score_logprobs");
    array("score_ranks", 'i', {T}), sampler.score_ranks = data<int32_t>("score_ranks");
    for (size_t r = 0; r < R; r++) {
        data<float>("top_p")[r] = 1, data<float>("repetition")[r] = 1;
        data<int32_t>("penalty_row")[r] = data<int32_t>("mask_row")[r] = data<int32_t>("num_logprobs")[r] = -1;
    }
}

Program::~Program() = default;

Buffer Program::view(int64_t offset, int64_t stride, int width, int rows) const {
    if (offset < 0 || stride < 0 || width < 1 || offset + int64_t(width) * 4 > options_.arena_bytes)
        throw std::out_of_range("a view at byte " + str(offset) + " of " + str(width) + " elements lies outside the arena of " +
                                str(options_.arena_bytes) + " bytes");
    if (rows != ROWS_TOKENS && rows != ROWS_SAMPLES) refuse("the rows of a view are tokens or samples");
    Buffer b;
    b.view.data = arena_->data() + offset;
    b.view.stride = stride;
    b.view.width = width;
    b.rows = rows;
    b.offset = offset;
    return b;
}

int Program::add_op(Op op, const std::string& name) {
    if (!op.fn) refuse("op '" + name + "' has no kernel in instruction set " + std::string(kernels_->isa));
    op.position = int(ops_.size());
    const int64_t rows = int64_t(options_.max_tokens) + options_.max_rows;
    for (const View& out : op.out)
        for (auto& operand : operands_)
            if (out && operand->valid && overlap(out, operand->source.view, rows)) operand->valid = false;
    ops_.push_back(op);
    names_.push_back(name);
    ns_.push_back(0), runs_.push_back(0);
    return op.position;
}

char* Program::allocate(size_t bytes) {
    auto piece = allocate_piece(bytes);
    kept_.push_back(piece);
    return piece.get();
}

const float* Program::floats(const float* values, size_t n, size_t padded) {
    float* copy = reinterpret_cast<float*>(allocate((padded > n ? padded : n) * 4));
    std::memcpy(copy, values, n * 4);
    return copy;
}

void Program::need_scratch(size_t bytes) {
    if (bytes <= scratch_bytes_) return;
    scratch_bytes_ = bytes;
    team_.reset();
}

const Operand& Program::operand(const Buffer& x, OperandKind kind, bool& fresh) {
    const int64_t groups = (int64_t(x.view.width) + GROUP - 1) / GROUP;
    Operand* found = nullptr;
    for (auto& o : operands_)
        if (o->kind == kind && o->groups == groups && o->rows == x.rows) found = o.get();
    if (!found) {
        auto made = std::make_unique<Operand>();
        made->kind = kind, made->groups = groups, made->rows = x.rows;
        made->stride = operand_stride(kind, groups);
        const int64_t rows = options_.max_tokens + (x.rows == ROWS_SAMPLES ? options_.max_rows : 0);
        made->data = allocate_piece(size_t(rows * made->stride));
        operand_bytes_ += rows * made->stride;
        found = made.get();
        operands_.push_back(std::move(made));
    }
    const View &now = x.view, &held = found->source.view;
    fresh = found->valid && now.data == held.data && now.stride == held.stride && now.width == held.width;
    found->source = x;
    found->valid = true;
    return *found;
}

Array& Program::array(const std::string& name, char type, std::vector<size_t> shape) {
    auto it = arrays_.find(name);
    if (it != arrays_.end()) return it->second;
    size_t bytes = item_bytes(type);
    for (size_t n : shape) bytes *= n;
    Array a;
    a.data = allocate(bytes);
    a.type = type;
    a.shape = std::move(shape);
    return arrays_[name] = a;
}

Array& Program::array(const std::string& name) {
    auto it = arrays_.find(name);
    if (it != arrays_.end()) return it->second;
    std::string all;
    for (const auto& n : array_names()) all += (all.empty() ? "" : ", ") + n;
    refuse("there is no metadata array '" + name + "'; these exist: " + all);
}

std::vector<std::string> Program::array_names() const {
    std::vector<std::string> names;
    for (const auto& a : arrays_) names.push_back(a.first);
    return names;
}

void Program::set_kv(char* kv, int64_t block_bytes, int64_t num_blocks, std::shared_ptr<const void> owner) {
    if (block_bytes < 1 || num_blocks < 1) refuse("KV memory needs at least one block of at least one byte");
    step_.kv = kv;
    step_.block_bytes = block_bytes;
    num_blocks_ = num_blocks;
    keep(std::move(owner));
}

void Program::allocate_kv(int64_t block_bytes, int64_t num_blocks) {
    if (block_bytes < 1 || num_blocks < 1) refuse("KV memory needs at least one block of at least one byte");
    auto memory = std::make_shared<Memory>(size_t(block_bytes) * size_t(num_blocks));
    char* data = memory->data();
    set_kv(data, block_bytes, num_blocks, std::move(memory));
}

void Program::set_windows(std::vector<int> windows) {
    if (int(windows.size()) != options_.num_groups)
        refuse("there are " + str(options_.num_groups) + " KV groups, but " + str(int64_t(windows.size())) + " windows were given");
    for (int w : windows)
        if (w < 0) refuse("a window is a number of tokens, or 0 for all");
    windows_ = std::move(windows);
}

void Program::check_step(int T, int R, int S, int P) const {
    const auto& o = options_;
    if (T < 1 || T > o.max_tokens) bad_step("a step takes 1 to " + str(o.max_tokens) + " tokens, not " + str(T));
    if (R < 1 || R > o.max_rows) bad_step("a step takes 1 to " + str(o.max_rows) + " rows, not " + str(R));
    if (S < 0 || S > o.max_rows) bad_step("a step samples at most " + str(o.max_rows) + " rows, not " + str(S));
    if (P < 0 || P > o.max_tokens) bad_step("a step scores at most " + str(o.max_tokens) + " tokens, not " + str(P));
    const Step& s = step_;
    if (s.row_starts[0] != 0 || s.row_starts[R] != T)
        bad_step("row_starts must run from 0 to " + str(T) + ", not from " + str(s.row_starts[0]) + " to " + str(s.row_starts[R]));
    for (int r = 0; r < R; r++) {
        if (s.row_starts[r + 1] <= s.row_starts[r]) bad_step("row " + str(r) + " has no token");
        if (s.context_lens[r] < 0) bad_step("row " + str(r) + " has a negative context");
    }
    for (int t = 0; t < T; t++) {
        if (uint32_t(s.token_ids[t]) >= uint32_t(o.vocab))
            bad_step("token " + str(t) + " has id " + str(s.token_ids[t]) + "; the vocabulary has " + str(o.vocab));
        if (s.positions[t] < 0 || s.positions[t] >= max_position_)
            bad_step("token " + str(t) + " is at position " + str(s.positions[t]) + "; positions end before " + str(max_position_));
    }
    for (int i = 0; i < S + P; i++)
        if (uint32_t(s.sample_tokens[i]) >= uint32_t(T))
            bad_step("sampling row " + str(i) + " is token " + str(s.sample_tokens[i]) + " of " + str(T));
    for (int i = 0; i < P; i++)
        if (uint32_t(sampler.targets[i]) >= uint32_t(o.vocab))
            bad_step("scored token " + str(i) + " has target " + str(sampler.targets[i]) + "; the vocabulary has " + str(o.vocab));
}

// Every block that this step reads or writes exists. Blocks behind a group's window may be anything.
void Program::check_tables(int R) const {
    if (!options_.table_width) return;
    if (!step_.kv) bad_step("KV memory has not been allocated");
    const int64_t size = options_.block_size;
    for (int r = 0; r < R; r++) {
        const int64_t context = step_.context_lens[r];
        const int64_t end = context + step_.row_starts[r + 1] - step_.row_starts[r];
        if (end > size * options_.table_width)
            bad_step("row " + str(r) + " reaches " + str(end) + " tokens; its block table holds " + str(size * options_.table_width));
        for (int g = 0; g < options_.num_groups; g++) {
            const int64_t first = windows_[g] > 0 && context >= windows_[g] ? context - windows_[g] + 1 : 0;
            const int32_t* table = step_.block_tables + g * step_.group_stride + int64_t(r) * step_.table_width;
            for (int64_t b = first / size; b <= (end - 1) / size; b++)
                if (uint32_t(table[b]) >= uint64_t(num_blocks_))
                    bad_step("block " + str(b) + " of row " + str(r) + " in group " + str(g) + " is " + str(table[b]) + "; there are " + str(num_blocks_) + " blocks");
        }
    }
}

void Program::report(const Op& op, int row) {
    int64_t none = -1;
    fault_.compare_exchange_strong(none, (int64_t(op.position) << 32) | uint32_t(row));
}

void Program::execute() {
    team_->run([this](const Ctx& ctx) {
        using clock = std::chrono::steady_clock;
        const bool timed = profile_ && ctx.tid == 0;
        auto from = timed ? clock::now() : clock::time_point();
        for (size_t i = 0; i < ops_.size(); i++) {
            const Op& op = ops_[i];
            op.fn(op, step_, ctx);
            ctx.barrier();
            if (!timed) continue;
            const auto now = clock::now();
            ns_[i] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - from).count();
            runs_[i]++;
            from = now;
        }
    });
}

void Program::run(int T, int R, int S, int P) {
    check_step(T, R, S, P);
    check_tables(R);
    step_.T = T, step_.R = R, step_.S = S, step_.P = P;
    int32_t* token_rows = data<int32_t>("token_rows");
    for (int r = 0; r < R; r++)
        for (int t = step_.row_starts[r]; t < step_.row_starts[r + 1]; t++) token_rows[t] = r;
    if (!team_) team_ = std::make_unique<Team>(options_.num_threads, scratch_bytes_, adaptive_);
    fault_.store(-1);
    execute();
    const int64_t fault = fault_.load();
    if (fault < 0) return;
    const int position = int(fault >> 32);
    throw Fault("values of row " + str(int32_t(fault)) + " are not finite", names_[size_t(position)], position);
}

void Program::run_on(int rows) {
    if (rows < 1 || step_.T != rows || step_.R != rows || step_.S != rows || step_.P != 0)
        refuse("the step before had " + str(step_.T) + " tokens in " + str(step_.R) + " rows, of which " + str(step_.S) +
               " drew; only one of " + str(rows) + " rows with a token each, which all draw, can be run on");
    int32_t *token_ids = data<int32_t>("token_ids"), *positions = data<int32_t>("positions");
    int32_t* context_lens = data<int32_t>("context_lens");
    int64_t* drawn_at = data<int64_t>("position");
    for (int r = 0; r < rows; r++) {
        token_ids[r] = sampler.token_ids[r];
        positions[r]++, context_lens[r]++, drawn_at[r]++;
    }
    run(rows, rows, rows, 0);
}

void Program::redraw(const std::vector<int>& rows) {
    if (!redraw_ || !team_) refuse("no step has drawn yet");
    if (step_.S > LOGITS_ROWS) refuse("the step sampled " + str(step_.S) + " rows; logits of at most " + str(LOGITS_ROWS) + " are kept");
    if (step_.P) refuse("the step scored tokens, whose logits took the place of those that were sampled");
    for (int row : rows)
        if (row < 0 || row >= step_.S) refuse("row " + str(row) + " did not sample; " + str(step_.S) + " rows did");
    sampler.refused = true;
    team_->run([&](const Ctx& ctx) { redraw_(rows, ctx); });
    sampler.refused = false;
}

void Program::profile(bool on) {
    profile_ = on;
    std::fill(ns_.begin(), ns_.end(), 0);
    std::fill(runs_.begin(), runs_.end(), 0);
}

std::vector<Program::OpTime> Program::times() const {
    std::vector<OpTime> out;
    for (size_t i = 0; i < names_.size(); i++) out.push_back({names_[i], runs_[i], ns_[i]});
    return out;
}

}  // namespace octavo
