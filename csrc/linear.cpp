// The linear and logits ops: operands, sharing out of column blocks, tiles of logits.
#include "linear_ops.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace octavo {

namespace {

struct LinearOp {
    Weight weight;
    const LinearKernels* kernels = nullptr;
    OperandKind kind = OPERAND_F32;
    const Operand* operand = nullptr;  // null for f32 operands
    bool prepare = false;
    LinearTask task;                   // but for rows
    // logits only
    Program* program = nullptr;
    bool gather = false;
    char* rows_operand = nullptr;      // prepared (or, for f32, gathered) rows of one tile
    int64_t rows_stride = 0;
    float* rest = nullptr;             // int8: what rounding left of the rows, [LOGITS_ROWS, groups * GROUP]
    char* rest_operand = nullptr;      // the same, prepared
    Logits logits;                     // LOGITS_ROWS of them
    int32_t* bad_rows = nullptr;       // [LOGITS_ROWS]
};

struct Range { int64_t first, last; };
Range share(int64_t items, const Ctx& ctx) { return {items * ctx.tid / ctx.n, items * (ctx.tid + 1) / ctx.n}; }

void prepare(const LinearOp& op, const char* x, int64_t stride, const int32_t* rows, int64_t num, char* out,
             int64_t out_stride, const Ctx& ctx) {
    const Range r = share(num * op.weight.groups, ctx);
    const auto fn = op.kind == OPERAND_BF16 ? op.kernels->prepare_bf16 : op.kernels->prepare_int8;
    if (r.first < r.last) fn(x, stride, rows, op.weight.cols, op.weight.groups, out, out_stride, r.first, r.last);
}

// Each thread takes a run of column blocks. When blocks are few and rows many, blocks are cut by
// rows as well, so that no thread idles; a sum is the same in any cut.
void multiply(const LinearOp& op, LinearTask task, const Ctx& ctx) {
    if (task.rows == 0) return;
    constexpr int64_t CUT_ROWS = 96;
    const int64_t blocks = op.weight.blocks;
    const auto fn = op.kernels->linear[op.weight.format];
    int64_t cuts = 1;
    if (ctx.n > 1 && blocks % ctx.n && blocks < 16 * ctx.n) cuts = task.rows / CUT_ROWS;
    if (cuts <= 1) {
        const Range r = share(blocks, ctx);
        if (r.first < r.last) fn(task, r.first, r.last, ctx.scratch);
        return;
    }
    const Range r = share(blocks * cuts, ctx);
    for (int64_t item = r.first; item < r.last;) {
        const int64_t cut = item / blocks, end = std::min(r.last, (cut + 1) * blocks);
        const int64_t from = task.rows * cut / cuts, to = task.rows * (cut + 1) / cuts;
        LinearTask part = task;
        part.x += from * task.x_stride;
        part.rows = to - from;
        part.out.y += from * task.out.y_stride;
        if (part.out.residual) part.out.residual += from * task.out.residual_stride;
        if (part.out.bad_rows) part.out.bad_rows += from;
        fn(part, item % blocks, item % blocks + (end - item), ctx.scratch);
        item = end;
    }
}

void run_linear(const Op& o, const Step& step, const Ctx& ctx) {
    const LinearOp& op = *static_cast<const LinearOp*>(o.w[0]);
    LinearTask task = op.task;
    task.rows = num_rows(o, step);
    if (op.prepare) {
        prepare(op, o.in[0].data, o.in[0].stride, nullptr, task.rows, op.operand->data.get(), op.operand->stride, ctx);
        ctx.barrier();
    }
    multiply(op, task, ctx);
}

// What rounding to int8 left of the groups that this thread has prepared becomes a second operand.
void prepare_rest(const LinearOp& op, const char* x, int64_t stride, const int32_t* rows, int64_t num, const Ctx& ctx) {
    const int64_t groups = op.weight.groups, cols = op.weight.cols, width = groups * GROUP;
    const Range r = share(num * groups, ctx);
    for (int64_t item = r.first; item < r.last; item++) {
        const int64_t row = item / groups, g = item % groups;
        const char* operand = op.rows_operand + row * op.rows_stride;
        const int8_t* q = reinterpret_cast<const int8_t*>(operand) + g * GROUP;
        const float scale = reinterpret_cast<const GroupScale*>(operand + width)[g].scale;
        const float* v = reinterpret_cast<const float*>(x + (rows ? rows[row] : row) * stride) + g * GROUP;
        float* rest = op.rest + row * width + g * GROUP;
        const int64_t n = std::min<int64_t>(GROUP, cols - g * GROUP);
        for (int64_t i = 0; i < n; i++) {
            const float back = scale * float(q[i]);
            rest[i] = v[i] - back;
        }
        std::fill(rest + n, rest + GROUP, 0.0f);
    }
    if (r.first < r.last)
        op.kernels->prepare_int8(reinterpret_cast<const char*>(op.rest), width * 4, nullptr, width, groups, op.rest_operand,
                                 op.rows_stride, r.first, r.last);
}

// Rows `from .. from + n` of the step's sampling rows become the tile's operand.
void gather_tile(const LinearOp& op, const View& x, const Step& step, int from, int n, const Ctx& ctx) {
    const int32_t* rows = op.gather ? step.sample_tokens + from : nullptr;
    const char* data = x.data + (op.gather ? 0 : from * x.stride);
    if (op.kind != OPERAND_F32) {
        prepare(op, data, x.stride, rows, n, op.rows_operand, op.rows_stride, ctx);
        if (op.rest) prepare_rest(op, data, x.stride, rows, n, ctx);
        return;
    }
    const Range r = share(n, ctx);
    for (int64_t i = r.first; i < r.last; i++)
        std::memcpy(op.rows_operand + i * op.rows_stride, data + (rows ? rows[i] : i) * x.stride, size_t(x.width) * 4);
}

// int8 logits: the product with the rows, and on top of it the product with what rounding left of them, a few
// column blocks at a time so that weights are read from memory once. A quarter of the divergence from the exact
// model came from rounding this one operand (docs/log.md).
void multiply_twice(const LinearOp& op, LinearTask task, int64_t first, int64_t last, const Ctx& ctx) {
    constexpr int64_t BLOCKS_AT_ONCE = 4;
    const auto fn = op.kernels->linear[op.weight.format];
    LinearTask once = task;
    once.out.softcap = 0;
    once.out.bad_rows = nullptr;
    task.x = op.rest_operand;
    task.out.residual = task.out.y;
    task.out.residual_stride = task.out.y_stride;
    for (int64_t block = first; block < last; block += BLOCKS_AT_ONCE) {
        const int64_t end = std::min(last, block + BLOCKS_AT_ONCE);
        fn(once, block, end, ctx.scratch);
        fn(task, block, end, ctx.scratch);
    }
}

// This thread's columns of the logits, which the sampler's first pass follows while they are in the caches.
void multiply_logits(const LinearOp& op, const LinearTask& task, const Ctx& ctx) {
    constexpr int64_t BLOCKS_A_CHUNK = SAMPLER_CHUNK / BLOCK_COLS, BLOCKS_AT_ONCE = 16 * BLOCKS_A_CHUNK;
    const Program& program = *op.program;
    const int64_t blocks = op.weight.blocks;
    const Range chunks = share((blocks + BLOCKS_A_CHUNK - 1) / BLOCKS_A_CHUNK, ctx);
    const int64_t last = std::min(blocks, chunks.last * BLOCKS_A_CHUNK);
    for (int64_t block = chunks.first * BLOCKS_A_CHUNK; block < last; block += BLOCKS_AT_ONCE) {
        const int64_t end = std::min(last, block + BLOCKS_AT_ONCE);
        if (op.rest) multiply_twice(op, task, block, end, ctx);
        else op.kernels->linear[op.weight.format](task, block, end, ctx.scratch);
        if (program.logits_out) continue;
        program.kernels().sampler->scan_columns(op.logits, task.rows, op.weight.rows, block * BLOCK_COLS,
                                                std::min(op.weight.rows, end * BLOCK_COLS));
    }
}

void run_logits(const Op& o, const Step& step, const Ctx& ctx) {
    const LinearOp& op = *static_cast<const LinearOp*>(o.w[0]);
    Program& program = *op.program;
    const int total = step.S + step.P;
    for (int from = 0; from < total;) {
        const bool scored = from >= step.S;
        const int n = std::min(LOGITS_ROWS, (scored ? total : step.S) - from);
        LinearTask task = op.task;
        task.rows = n;
        // Raw logits are asked for by tools and tests, which want to hear of values that are not finite; in a step the
        // sampler draws nothing (-1) from such a row, which ends that one request.
        if (program.logits_out) {
            if (ctx.tid == 0) std::memset(op.bad_rows, 0, LOGITS_ROWS * sizeof(int32_t));
            task.out.bad_rows = op.bad_rows;
            task.out.y = reinterpret_cast<char*>(program.logits_out + int64_t(from) * op.weight.rows);
            task.out.y_stride = op.weight.rows * 4;
        }
        gather_tile(op, o.in[0], step, from, n, ctx);
        ctx.barrier();
        multiply_logits(op, task, ctx);
        ctx.barrier();
        if (program.logits_out) {
            for (int i = 0; i < n && ctx.tid == 0; i++)
                if (op.bad_rows[i]) program.report(o, from + i);
        } else {
            const SamplerKernels& sampler = *program.kernels().sampler;
            if (scored) sampler.score_rows(program.sampler, op.logits, from - step.S, n, ctx);
            else sampler.sample_rows(program.sampler, op.logits, from, n, ctx);
        }
        ctx.barrier();
        from += n;
    }
}

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }
std::string str(int64_t n) { return std::to_string(n); }

std::shared_ptr<LinearOp> make(Program& p, const std::string& name, const Buffer& x, const Weight& w) {
    if (!p.kernels().linear) refuse("no linear kernels for instruction set " + std::string(p.kernels().isa));
    if (x.view.width != w.cols)
        refuse("linear '" + name + "': the input is " + str(x.view.width) + " wide, the matrix takes " + str(w.cols));
    auto op = std::make_shared<LinearOp>();
    op->weight = w;
    op->kernels = p.kernels().linear;
    op->kind = op->kernels->operand[w.format];
    op->task.weights = w.data.get();
    op->task.block_bytes = w.block_bytes();
    op->task.groups = w.groups;
    op->task.cols = w.cols;
    op->task.x = x.view.data;
    op->task.x_stride = x.view.stride;
    op->program = &p;
    p.need_scratch(size_t(op->kernels->scratch_bytes(w.groups)));
    return op;
}

// Bias in the order of packed columns, padded to whole blocks. Interleaved: first half gate, second half up.
const float* block_order(Program& p, const Weight& w, const std::vector<float>& bias) {
    std::vector<float> out(size_t(w.blocks) * BLOCK_COLS, 0.0f);
    const int64_t half = w.rows / 2;
    for (int64_t r = 0; r < w.rows; r++) {
        const int64_t at = w.interleaved ? r % half / 16 * BLOCK_COLS + r / half * 16 + r % half % 16 : r;
        out[size_t(at)] = bias[size_t(r)];
    }
    return p.floats(out.data(), out.size());
}

}  // namespace

void add_linear(Program& p, const std::string& name, const Buffer& x, const Buffer& y, const Weight& w,
                const std::vector<float>& bias, const Buffer* residual, Gate gate) {
    auto op = make(p, name, x, w);
    const int64_t width = gate == GATE_NONE ? w.rows : w.rows / 2;
    if ((gate != GATE_NONE) != w.interleaved)
        refuse("linear '" + name + "': a gate needs an interleaved matrix, and an interleaved matrix a gate");
    if (y.view.width != width)
        refuse("linear '" + name + "': the output is " + str(y.view.width) + " wide, the product " + str(width));
    if (residual && residual->view.width != width)
        refuse("linear '" + name + "': the residual is " + str(residual->view.width) + " wide, the product " + str(width));
    if (x.rows != y.rows || (residual && residual->rows != y.rows))
        refuse("linear '" + name + "': input, output and residual must all have tokens, or all samples, as rows");
    if (!bias.empty() && int64_t(bias.size()) != w.rows)
        refuse("linear '" + name + "': the bias has " + str(int64_t(bias.size())) + " values for " + str(w.rows) + " outputs");
    if (y.view.data == x.view.data && op->kind == OPERAND_F32)
        refuse("linear '" + name + "': the output may not be the input");
    if (op->kind != OPERAND_F32) {
        bool fresh = false;
        op->operand = &p.operand(x, op->kind, fresh);
        op->prepare = !fresh;
        op->task.x = op->operand->data.get();
        op->task.x_stride = op->operand->stride;
    }
    Epilogue& e = op->task.out;
    if (!bias.empty()) e.bias = block_order(p, w, bias);
    if (residual) e.residual = residual->view.data, e.residual_stride = residual->view.stride;
    e.y = y.view.data, e.y_stride = y.view.stride, e.width = width, e.gate = gate;

    Op o;
    o.fn = run_linear;
    o.in[0] = x.view;
    if (residual) o.in[1] = residual->view;
    o.out[0] = y.view;
    o.w[0] = op.get();
    o.rows = y.rows;
    p.keep(op);
    p.add_op(o, name);
}

void add_logits(Program& p, const std::string& name, const Buffer& x, const Weight& w, float softcap) {
    auto op = make(p, name, x, w);
    if (w.interleaved) refuse("logits '" + name + "': the matrix may not be interleaved");
    if (w.rows != p.options().vocab)
        refuse("logits '" + name + "': the matrix has " + str(w.rows) + " rows, the vocabulary " + str(p.options().vocab));
    if (!p.kernels().sampler) refuse("no sampler for instruction set " + std::string(p.kernels().isa));
    op->gather = x.rows == ROWS_TOKENS;
    op->rows_stride = op->kind == OPERAND_F32 ? (w.cols * 4 + 63) / 64 * 64 + 64 : operand_stride(op->kind, w.groups);
    op->rows_operand = p.allocate(size_t(LOGITS_ROWS * op->rows_stride));
    op->task.x = op->rows_operand;
    op->task.x_stride = op->rows_stride;
    if (op->kind == OPERAND_INT8) {
        op->rest = reinterpret_cast<float*>(p.allocate(size_t(LOGITS_ROWS * w.groups * GROUP) * 4));
        op->rest_operand = p.allocate(size_t(LOGITS_ROWS * op->rows_stride));
    }
    op->logits.stride = (w.rows + 15) / 16 * 16 + 16;
    op->logits.data = reinterpret_cast<float*>(p.allocate(size_t(LOGITS_ROWS) * size_t(op->logits.stride) * 4));
    op->logits.maxima_stride = ((w.rows + SAMPLER_CHUNK - 1) / SAMPLER_CHUNK + 15) / 16 * 16;
    op->logits.maxima = reinterpret_cast<float*>(p.allocate(size_t(LOGITS_ROWS) * size_t(op->logits.maxima_stride) * 4));
    op->bad_rows = reinterpret_cast<int32_t*>(p.allocate(LOGITS_ROWS * 4));
    Epilogue& e = op->task.out;
    e.y = reinterpret_cast<char*>(op->logits.data);
    e.y_stride = op->logits.stride * 4;
    e.width = w.rows;
    e.softcap = softcap;
    p.need_scratch(sampler_scratch_bytes(w.rows));
    p.set_redraw([kept = op.get()](const std::vector<int>& rows, const Ctx& ctx) {
        const Program& program = *kept->program;
        const Range mine = share(int64_t(rows.size()), ctx);
        Ctx alone = ctx;
        alone.tid = 0, alone.n = 1;
        for (int64_t i = mine.first; i < mine.last; i++) {
            Logits one = kept->logits;
            one.data = one.row(rows[size_t(i)]), one.maxima += rows[size_t(i)] * one.maxima_stride;
            program.kernels().sampler->sample_rows(program.sampler, one, rows[size_t(i)], 1, alone);
        }
    });

    Op o;
    o.fn = run_logits;
    o.in[0] = x.view;
    o.w[0] = op.get();
    o.rows = ROWS_SAMPLES;
    p.keep(op);
    p.add_op(o, name);
}

}  // namespace octavo
