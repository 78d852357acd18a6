// Python face of every op but linear and logits: functions that append an op to a Program, and the sampler
// on its own. Checks widths, rows and ranges; kernels trust them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "dequant.h"
#include "ops.h"
#include "program.h"

namespace octavo {

namespace {

using Floats = Array1<const float>;

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
    throw std::invalid_argument("op '" + name + "': " + why);
}
std::string str(int64_t n) { return std::to_string(n); }

void want(bool ok, const std::string& name, const std::string& why) {
    if (!ok) refuse(name, why);
}

void same_rows(const std::string& name, const Buffer& a, const Buffer& b) {
    want(a.rows == b.rows, name, "its buffers must all have tokens, or all samples, as rows");
}
void same_shape(const std::string& name, const Buffer& a, const Buffer& b) {
    same_rows(name, a, b);
    want(a.view.width == b.view.width, name, "widths " + str(a.view.width) + " and " + str(b.view.width) + " differ");
}
void tokens_only(const std::string& name, const Buffer& b) {
    want(b.rows == ROWS_TOKENS, name, "its buffers must have tokens as rows");
}
void finite(const std::string& name, const char* what, double value) {
    want(std::isfinite(value), name, std::string(what) + " must be finite");
}

const float* vector(Program& p, const std::string& name, const char* what, const Floats& values, int64_t width) {
    const int64_t n = int64_t(values.shape(0));
    want(n == width, name, std::string(what) + " has " + str(n) + " elements, not " + str(width));
    return p.floats(values.data(), size_t(n));
}

Op op_of(OpFn fn, std::initializer_list<Buffer> in, std::initializer_list<Buffer> out) {
    Op op;
    op.fn = fn;
    int i = 0;
    for (const Buffer& b : in) op.in[i++] = b.view;
    i = 0;
    for (const Buffer& b : out) op.out[i++] = b.view, op.rows = b.rows;
    return op;
}

template <class Table>
const Table& family(const Table* table, const Program& p, const std::string& name) {
    want(table != nullptr, name, "instruction set " + std::string(p.kernels().isa) + " was built without this kind of kernel");
    return *table;
}
const ElementwiseKernels& elementwise(const Program& p, const std::string& name) { return family(p.kernels().elementwise, p, name); }
const NormKernels& norms(const Program& p, const std::string& name) { return family(p.kernels().norm, p, name); }

// ---- element by element -----------------------------------------------------------------------------------

using Bytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;

void embed(Program& p, const std::string& name, const Buffer& y, const std::string& type, Bytes data, int64_t rows, float scale) {
    tokens_only(name, y);
    finite(name, "scale", scale);
    const Type t = parse_type(type);
    const int64_t bytes = row_bytes(t, y.view.width);
    want(rows > 0, name, "the table has no rows");
    want(int64_t(data.nbytes()) == rows * bytes, name,
         "the table holds " + str(int64_t(data.nbytes())) + " bytes; " + str(rows) + " rows of " + str(y.view.width) + " " + type + " take " + str(rows * bytes));
    auto owner = std::make_shared<std::pair<Bytes, EmbedTable>>(data, EmbedTable{});
    owner->second = {int32_t(t), reinterpret_cast<const char*>(data.data()), bytes, rows, dequant_row};
    p.keep(owner);
    Op op = op_of(elementwise(p, name).embed, {}, {y});
    op.w[1] = &owner->second;
    op.f[0] = scale;
    p.add_op(op, name);
}

void add_binary(Program& p, const std::string& name, OpFn fn, const Buffer& a, const Buffer& b, const Buffer& y) {
    same_shape(name, a, y);
    same_shape(name, b, y);
    p.add_op(op_of(fn, {a, b}, {y}), name);
}

void add_unary(Program& p, const std::string& name, OpFn fn, const Buffer& x, const Buffer& y, float attribute, int choice) {
    same_shape(name, x, y);
    finite(name, "the attribute", attribute);
    Op op = op_of(fn, {x}, {y});
    op.f[0] = attribute;
    op.i[0] = choice;
    p.add_op(op, name);
}

int activation(const std::string& name, const std::string& fn) {
    static const std::map<std::string, Activation> known = {
        {"silu", ACT_SILU}, {"gelu_tanh", ACT_GELU_TANH}, {"gelu", ACT_GELU_ERF}, {"relu", ACT_RELU},
        {"relu2", ACT_RELU2}, {"sigmoid", ACT_SIGMOID}, {"tanh", ACT_TANH}, {"quick_gelu", ACT_QUICK_GELU}};
    const auto found = known.find(fn);
    if (found != known.end()) return found->second;
    std::string names;
    for (const auto& [key, value] : known) names += (names.empty() ? "" : ", ") + key;
    refuse(name, "fn '" + fn + "' is not one of " + names);
}

void gather_rows(Program& p, const std::string& name, const Buffer& x, const Buffer& y) {
    want(x.rows == ROWS_TOKENS && y.rows == ROWS_SAMPLES, name, "it takes tokens and gives samples");
    want(x.view.width == y.view.width, name, "widths " + str(x.view.width) + " and " + str(y.view.width) + " differ");
    p.add_op(op_of(elementwise(p, name).gather_rows, {x}, {y}), name);
}

// ---- norms ------------------------------------------------------------------------------------------------

Op norm_op(Program& p, const std::string& name, OpFn fn, std::initializer_list<Buffer> in, std::initializer_list<Buffer> out,
           const Floats& weight, float eps, float offset, int group) {
    const Buffer& x = *in.begin();
    for (const Buffer& b : in) same_shape(name, b, x);
    for (const Buffer& b : out) same_shape(name, b, x);
    finite(name, "offset", offset);
    want(std::isfinite(eps) && eps >= 0, name, "eps must be 0 or more");
    want(group >= 0 && (group == 0 || x.view.width % group == 0), name,
         "group " + str(group) + " does not divide width " + str(x.view.width));
    Op op = op_of(fn, in, out);
    op.w[0] = vector(p, name, "weight", weight, group ? group : x.view.width);
    op.f[0] = eps, op.f[1] = offset;
    op.i[0] = group;
    return op;
}

void layer_norm(Program& p, const std::string& name, const Buffer& x, const Buffer& y, const Floats& weight,
                const std::optional<Floats>& bias, float eps) {
    Op op = norm_op(p, name, norms(p, name).layer_norm, {x}, {y}, weight, eps, 0, 0);
    if (bias) op.w[1] = vector(p, name, "bias", *bias, x.view.width);
    p.add_op(op, name);
}

// ---- rope, KV, attention ----------------------------------------------------------------------------------

// One table for all layers, and all programs, that rotate alike.
std::shared_ptr<const RopeTable> rope_table(const std::vector<double>& inv_freq, double attention_factor, int max_positions) {
    static std::mutex mutex;
    static std::map<std::tuple<std::vector<double>, double, int>, std::weak_ptr<const RopeTable>> tables;
    std::lock_guard<std::mutex> lock(mutex);
    auto& slot = tables[{inv_freq, attention_factor, max_positions}];
    auto table = slot.lock();
    if (!table) {
        table = std::make_shared<const RopeTable>(inv_freq.data(), int(inv_freq.size()), attention_factor, max_positions);
        slot = table;
    }
    return table;
}

// One space for all attend ops of a program.
AttendSpace* attend_space(Program& p) {
    static std::mutex mutex;
    static std::map<const Program*, std::weak_ptr<AttendSpace>> spaces;
    std::lock_guard<std::mutex> lock(mutex);
    for (auto it = spaces.begin(); it != spaces.end();) it = it->second.expired() ? spaces.erase(it) : std::next(it);
    auto& slot = spaces[&p];
    auto space = slot.lock();
    if (!space) {
        space = std::make_shared<AttendSpace>();
        slot = space;
        p.keep(space);
    }
    return space.get();
}

void rope(Program& p, const std::string& name, const Buffer& q, const Buffer& k, const Buffer& q_out, const Buffer& k_out, int head_dim,
          int rotary_dim, const std::vector<double>& inv_freq, double attention_factor, bool interleaved) {
    tokens_only(name, q);
    tokens_only(name, k);
    same_shape(name, q, q_out);
    same_shape(name, k, k_out);
    want(head_dim > 0 && q.view.width % head_dim == 0 && k.view.width % head_dim == 0, name,
         "head_dim " + str(head_dim) + " does not divide widths " + str(q.view.width) + " and " + str(k.view.width));
    want(rotary_dim > 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim, name,
         "rotary_dim " + str(rotary_dim) + " must be even and at most head_dim " + str(head_dim));
    want(int64_t(inv_freq.size()) * 2 == rotary_dim, name,
         "inv_freq has " + str(int64_t(inv_freq.size())) + " elements; rotary_dim " + str(rotary_dim) + " takes half as many as itself");
    for (double f : inv_freq) finite(name, "inv_freq", f);
    finite(name, "attention_factor", attention_factor);
    want(p.kernels().rope != nullptr, name, "this instruction set was built without rope");
    const auto table = rope_table(inv_freq, attention_factor, p.options().table_width * p.options().block_size);
    p.keep(table);
    Op op = op_of(p.kernels().rope->rope, {q, k}, {q_out, k_out});
    op.w[0] = table.get();
    op.i[0] = head_dim, op.i[1] = rotary_dim, op.i[2] = interleaved;
    p.limit_positions(table->max_positions());
    p.add_op(op, name);
}

void place(Program& p, Op& op, const std::string& name, int group, int index, int kv_heads, int head_dim, const std::string& dtype) {
    want(group >= 0 && group < p.options().num_groups, name, "KV group " + str(group) + " of " + str(p.options().num_groups));
    want(index >= 0, name, "the layer's index in its block must not be negative");
    want(kv_heads > 0 && kv_heads <= ATTEND_MAX_KV_HEADS, name, "kv_heads " + str(kv_heads) + " must be 1.." + str(ATTEND_MAX_KV_HEADS));
    want(head_dim > 0 && head_dim % 16 == 0 && head_dim <= 1024, name,
         "head_dim " + str(head_dim) + " must be a multiple of 16, at most 1024, in the native executor");
    want(p.options().block_size % 16 == 0, name, "block_size " + str(p.options().block_size) + " must be a multiple of 16");
    want(dtype == "bf16" || dtype == "f32", name, "KV dtype '" + dtype + "' is not bf16 or f32");
    op.i[KV_GROUP] = group, op.i[KV_INDEX] = index, op.i[KV_HEADS] = kv_heads, op.i[KV_HEAD_DIM] = head_dim;
    op.i[KV_DTYPE] = dtype == "bf16" ? KV_BF16 : KV_F32;
}

void kv_write(Program& p, const std::string& name, const Buffer& k, const Buffer& v, int group, int index, int kv_heads, int head_dim,
              const std::string& dtype) {
    tokens_only(name, k);
    same_shape(name, k, v);
    want(p.kernels().rope != nullptr, name, "this instruction set was built without kv_write");
    Op op = op_of(p.kernels().rope->kv_write, {k, v}, {});
    place(p, op, name, group, index, kv_heads, head_dim, dtype);
    want(k.view.width == kv_heads * head_dim, name, "width " + str(k.view.width) + " is not kv_heads x head_dim");
    p.add_op(op, name);
}

void attend(Program& p, const std::string& name, const Buffer& q, const Buffer& y, int group, int index, int heads, int kv_heads,
            int head_dim, const std::string& dtype, float scale, int window, float softcap, const std::optional<Floats>& sinks) {
    tokens_only(name, q);
    same_shape(name, q, y);
    want(p.kernels().attention != nullptr, name, "this instruction set was built without attention");
    want(p.options().num_threads <= AttendSpace::MAX_THREADS, name, "at most " + str(AttendSpace::MAX_THREADS) + " threads");
    Op op = op_of(p.kernels().attention->attend, {q}, {y});
    place(p, op, name, group, index, kv_heads, head_dim, dtype);
    want(heads > 0 && heads % kv_heads == 0, name, "heads " + str(heads) + " must be a multiple of kv_heads " + str(kv_heads));
    want(q.view.width == heads * head_dim, name, "width " + str(q.view.width) + " is not heads x head_dim");
    want(std::isfinite(scale) && scale > 0, name, "scale must be above 0");
    want(std::isfinite(softcap) && softcap >= 0, name, "softcap must be 0 (off) or more");
    want(window >= 0, name, "window must be 0 (all) or more");
    op.i[KV_FIRST_FREE] = heads, op.i[KV_FIRST_FREE + 1] = window;
    op.f[0] = scale, op.f[1] = softcap;
    if (sinks) op.w[0] = vector(p, name, "sinks", *sinks, heads);
    op.w[1] = attend_space(p);
    p.need_scratch(p.kernels().attention->scratch_bytes(heads / kv_heads, head_dim));
    p.add_op(op, name);
}

// ---- the sampler on its own -------------------------------------------------------------------------------

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T> numpy(std::vector<T>&& values, std::initializer_list<size_t> shape) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T>(kept->data(), shape, owner);
}

template <class T>
In<T> field(nb::handle batch, const char* name, size_t ndim, int64_t first) {
    In<T> array;
    if (!nb::try_cast<In<T>>(batch.attr(name), array) || array.ndim() != ndim || (first >= 0 && int64_t(array.shape(0)) != first))
        throw std::invalid_argument(std::string("sampling field '") + name + "' has the wrong type or shape");
    return array;
}

// Scratch and rows of one thread, without a team.
struct Alone {
    std::vector<char> bytes;
    Ctx ctx;
    explicit Alone(int64_t vocab) : bytes(sampler_scratch_bytes(vocab) + 64) {
        auto at = (reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64;
        ctx.scratch = reinterpret_cast<char*>(at);
        ctx.scratch_bytes = bytes.size() - 64;
    }
};

const SamplerKernels& sampler_of(const std::string& isa) {
    const SamplerKernels* kernels = kernel_table(isa.empty() ? best_isa() : isa).sampler;
    if (!kernels) throw std::invalid_argument("no sampler for instruction set '" + isa + "'");
    return *kernels;
}

nb::tuple sample(In<float> logits, nb::handle batch, const std::string& isa) {
    if (logits.ndim() != 2) throw std::invalid_argument("logits must be [rows, vocab]");
    const int64_t rows = int64_t(logits.shape(0)), vocab = int64_t(logits.shape(1));
    SamplerIO io;
    io.vocab = int32_t(vocab);
    const auto temperature = field<float>(batch, "temperature", 1, rows), top_p = field<float>(batch, "top_p", 1, rows);
    const auto min_p = field<float>(batch, "min_p", 1, rows), repetition = field<float>(batch, "repetition", 1, rows);
    const auto presence = field<float>(batch, "presence", 1, rows), frequency = field<float>(batch, "frequency", 1, rows);
    const auto top_k = field<int32_t>(batch, "top_k", 1, rows), penalty_row = field<int32_t>(batch, "penalty_row", 1, rows);
    const auto mask_row = field<int32_t>(batch, "mask_row", 1, rows), num_logprobs = field<int32_t>(batch, "num_logprobs", 1, rows);
    const auto seed = field<uint64_t>(batch, "seed", 1, rows);
    const auto position = field<int64_t>(batch, "position", 1, rows);
    const auto counts = field<int32_t>(batch, "counts", 2, -1);
    const auto seen = field<uint32_t>(batch, "seen", 2, -1), masks = field<uint32_t>(batch, "masks", 2, -1);
    const auto bias_start = field<int32_t>(batch, "bias_start", 1, rows + 1);
    const auto bias_ids = field<int32_t>(batch, "bias_ids", 1, -1);
    const auto bias_values = field<float>(batch, "bias_values", 1, int64_t(bias_ids.shape(0)));
    const auto chosen_ids = field<int32_t>(batch, "chosen_ids", 1, -1);
    const size_t num_chosen = chosen_ids.shape(0);
    const auto chosen_start = field<int32_t>(batch, "chosen_start", 1, num_chosen ? rows + 1 : -1);
    int64_t best = 0;
    const size_t words = size_t(vocab + 31) / 32;
    for (int64_t r = 0; r < rows; ++r) {
        if (num_logprobs.data()[r] > best) best = num_logprobs.data()[r];
        const int64_t p = penalty_row.data()[r], m = mask_row.data()[r];
        if (p >= int64_t(counts.shape(0)) || p >= int64_t(seen.shape(0)) || m >= int64_t(masks.shape(0)) ||
            (p >= 0 && (counts.shape(1) != size_t(vocab) || seen.shape(1) != words)) || (m >= 0 && masks.shape(1) != words) ||
            bias_start.data()[r] < 0 || bias_start.data()[r + 1] < bias_start.data()[r] || bias_start.data()[r + 1] > int64_t(bias_ids.shape(0)))
            throw std::invalid_argument("row " + str(r) + " points outside counts, seen, masks or bias_ids");
        if (num_chosen && (chosen_start.data()[r] < 0 || chosen_start.data()[r + 1] < chosen_start.data()[r] ||
                           chosen_start.data()[r + 1] > int64_t(num_chosen)))
            throw std::invalid_argument("row " + str(r) + " points outside chosen_ids");
    }
    io.temperature = temperature.data(), io.top_k = top_k.data(), io.top_p = top_p.data(), io.min_p = min_p.data();
    io.seed = seed.data(), io.position = position.data();
    io.repetition = repetition.data(), io.presence = presence.data(), io.frequency = frequency.data();
    io.penalty_row = penalty_row.data(), io.counts = counts.data(), io.seen = seen.data();
    io.counts_stride = int64_t(counts.shape(1)), io.seen_stride = int64_t(seen.shape(1));
    io.bias_start = bias_start.data(), io.bias_ids = bias_ids.data(), io.bias_values = bias_values.data();
    io.mask_row = mask_row.data(), io.masks = masks.data(), io.masks_stride = int64_t(masks.shape(1));
    io.num_logprobs = num_logprobs.data();
    io.processed_logprobs = nb::cast<bool>(batch.attr("processed_logprobs"));
    io.reports_logits = nb::cast<bool>(batch.attr("reports_logits"));
    std::vector<float> chosen_logprobs(num_chosen);
    if (num_chosen) {
        io.chosen_start = chosen_start.data(), io.chosen_ids = chosen_ids.data();
        io.chosen_logprobs = chosen_logprobs.data();
    }
    std::vector<int32_t> ids(rows), ranks(rows), top_ids(rows * best);
    std::vector<float> logprobs(rows), top_logprobs(rows * best), work(logits.data(), logits.data() + rows * vocab);
    io.token_ids = ids.data(), io.logprobs = logprobs.data(), io.ranks = ranks.data();
    io.top_ids = top_ids.data(), io.top_logprobs = top_logprobs.data(), io.top_stride = best;
    Alone alone(vocab);
    sampler_of(isa).sample_rows(io, {work.data(), vocab}, 0, rows, alone.ctx);
    const size_t n = size_t(rows), k = size_t(best);
    return nb::make_tuple(numpy(std::move(ids), {n}), numpy(std::move(logprobs), {n}), numpy(std::move(ranks), {n}),
                          numpy(std::move(top_ids), {n, k}), numpy(std::move(top_logprobs), {n, k}),
                          numpy(std::move(chosen_logprobs), {num_chosen}));
}

nb::tuple score(In<float> logits, In<int32_t> targets, int top, const std::string& isa, bool reports_logits) {
    if (logits.ndim() != 2 || targets.ndim() != 1 || targets.shape(0) != logits.shape(0))
        throw std::invalid_argument("logits must be [rows, vocab], targets [rows]");
    if (top < 0) throw std::invalid_argument("top must be 0 or more");
    const size_t n = logits.shape(0), vocab = logits.shape(1), k = size_t(top);
    std::vector<int32_t> ranks(n), top_ids(n * k);
    std::vector<float> logprobs(n), top_logprobs(n * k);
    SamplerIO io;
    io.vocab = int32_t(vocab);
    io.reports_logits = reports_logits;
    io.targets = targets.data(), io.score_logprobs = logprobs.data(), io.score_ranks = ranks.data();
    io.score_top_ids = top_ids.data(), io.score_top_logprobs = top_logprobs.data(), io.score_top = top;
    Alone alone{int64_t(vocab)};
    sampler_of(isa).score_rows(io, {const_cast<float*>(logits.data()), int64_t(vocab)}, 0, int64_t(n), alone.ctx);  // reads only
    return nb::make_tuple(numpy(std::move(logprobs), {n}), numpy(std::move(ranks), {n}), numpy(std::move(top_ids), {n, k}),
                          numpy(std::move(top_logprobs), {n, k}));
}

}  // namespace

void bind_ops(nb::module_& m) {
    using namespace nb::literals;
    const nb::handle program = nb::type<Program>();
    // The ops become methods of Program, which bind_program.cpp has defined.
    const auto def = [&](const char* kind, auto&& fn, auto... extra) {
        nb::cpp_function_def(fn, nb::scope(program), nb::name(kind), nb::is_method(), extra...);
    };
    def("embed", embed, "name"_a, "y"_a, "type"_a, "data"_a, "rows"_a, "scale"_a = 1.0f,
          "Rows of a table in the file's own format (a ggml type name and its bytes, kept alive).");
    def("gather_rows", gather_rows, "name"_a, "x"_a, "y"_a);
    const auto binary = [&](const char* kind, OpFn ElementwiseKernels::*fn) {
        def(
            kind,
            [fn](Program& p, const std::string& name, const Buffer& a, const Buffer& b, const Buffer& y) {
                add_binary(p, name, elementwise(p, name).*fn, a, b, y);
            },
            "name"_a, "a"_a, "b"_a, "y"_a);
    };
    binary("add", &ElementwiseKernels::add);
    binary("mul", &ElementwiseKernels::mul);
    binary("silu_mul", &ElementwiseKernels::silu_mul);
    binary("gelu_mul", &ElementwiseKernels::gelu_mul);
    def(
        "scale",
        [](Program& p, const std::string& name, const Buffer& x, const Buffer& y, float factor) {
            add_unary(p, name, elementwise(p, name).scale, x, y, factor, 0);
        },
        "name"_a, "x"_a, "y"_a, "factor"_a);
    def(
        "soft_cap",
        [](Program& p, const std::string& name, const Buffer& x, const Buffer& y, float cap) {
            want(cap > 0, name, "cap must be above 0");
            add_unary(p, name, elementwise(p, name).soft_cap, x, y, cap, 0);
        },
        "name"_a, "x"_a, "y"_a, "cap"_a);
    def(
        "act",
        [](Program& p, const std::string& name, const Buffer& x, const Buffer& y, const std::string& fn) {
            add_unary(p, name, elementwise(p, name).act, x, y, 0, activation(name, fn));
        },
        "name"_a, "x"_a, "y"_a, "fn"_a);
    def(
        "rms_norm",
        [](Program& p, const std::string& name, const Buffer& x, const Buffer& y, const Floats& weight, float eps, float offset, int group) {
            p.add_op(norm_op(p, name, norms(p, name).rms_norm, {x}, {y}, weight, eps, offset, group), name);
        },
        "name"_a, "x"_a, "y"_a, "weight"_a, "eps"_a, "offset"_a = 0.0f, "group"_a = 0);
    def(
        "add_rms_norm",
        [](Program& p, const std::string& name, const Buffer& x, const Buffer& residual, const Buffer& sum, const Buffer& y,
           const Floats& weight, float eps, float offset) {
            p.add_op(norm_op(p, name, norms(p, name).add_rms_norm, {x, residual}, {sum, y}, weight, eps, offset, 0), name);
        },
        "name"_a, "x"_a, "residual"_a, "sum"_a, "y"_a, "weight"_a, "eps"_a, "offset"_a = 0.0f);
    def("layer_norm", layer_norm, "name"_a, "x"_a, "y"_a, "weight"_a, "bias"_a.none(), "eps"_a);
    def("rope", rope, "name"_a, "q"_a, "k"_a, "q_out"_a, "k_out"_a, "head_dim"_a, "rotary_dim"_a, "inv_freq"_a,
          "attention_factor"_a = 1.0, "interleaved"_a = false);
    def("kv_write", kv_write, "name"_a, "k"_a, "v"_a, "group"_a, "index"_a, "kv_heads"_a, "head_dim"_a, "dtype"_a);
    def("attend", attend, "name"_a, "q"_a, "y"_a, "group"_a, "index"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "dtype"_a,
          "scale"_a, "window"_a = 0, "softcap"_a = 0.0f, "sinks"_a.none() = nb::none());
    m.def("sample", sample, "logits"_a, "batch"_a, "isa"_a = "",
          "Draws from logits [S, vocab] as SamplingBatch says: ids, logprobs, ranks, top ids and logprobs, chosen logprobs.");
    m.def("score", score, "logits"_a, "targets"_a, "top"_a = 0, "isa"_a = "", "reports_logits"_a = false,
          "Logprobs and ranks of known tokens, and the `top` best beside each.");
    m.def("philox_uniform", philox_uniform, "seed"_a, "position"_a, "The uniform number in [0, 1) of a draw.");
}

}  // namespace octavo
