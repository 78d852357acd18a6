#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind.h"
#include "linear_ops.h"
#include "program.h"

namespace octavo {

namespace {

nb::dlpack::dtype dtype_of(char type) {
    switch (type) {
        case 'f': return nb::dtype<float>();
        case 'I': return nb::dtype<uint32_t>();
        case 'l': return nb::dtype<int64_t>();
        case 'L': return nb::dtype<uint64_t>();
        default: return nb::dtype<int32_t>();
    }
}

nb::ndarray<nb::numpy> io(nb::object self, const std::string& name) {
    Array& a = nb::cast<Program&>(self).array(name);
    return nb::ndarray<nb::numpy>(a.data, a.shape.size(), a.shape.data(), self, nullptr, dtype_of(a.type));
}

template <class T>
T* place(Program& p, const std::string& name, std::optional<nb::ndarray<>> given, int ndim, int64_t* stride) {
    if (!given) {
        p.keep_as(name, nullptr);
        if (stride) *stride = 0;
        return nullptr;
    }
    const auto& a = *given;
    bool contiguous = true;
    int64_t step = 1;
    for (int i = int(a.ndim()) - 1; i >= 0; i--) {
        if (a.shape(size_t(i)) > 1 && a.stride(size_t(i)) != step) contiguous = false;
        step *= int64_t(a.shape(size_t(i)));
    }
    if (int(a.ndim()) != ndim || a.dtype() != nb::dtype<T>() || a.device_type() != nb::device::cpu::value || !contiguous)
        throw std::invalid_argument("array '" + name + "' must be contiguous, of " + std::to_string(ndim) +
                                    " dimensions and of the type of executors.base");
    p.keep_as(name, std::make_shared<nb::ndarray<>>(a));
    if (stride) *stride = int64_t(a.shape(1));
    return static_cast<T*>(a.data());
}

// The arrays of a step whose sizes vary; None takes one away.
void set_array(Program& p, const std::string& name, std::optional<nb::ndarray<>> a) {
    SamplerIO& s = p.sampler;
    if (name == "counts") s.counts = place<int32_t>(p, name, a, 2, &s.counts_stride);
    else if (name == "seen") s.seen = place<uint32_t>(p, name, a, 2, &s.seen_stride);
    else if (name == "bias_ids") s.bias_ids = place<int32_t>(p, name, a, 1, nullptr);
    else if (name == "bias_values") s.bias_values = place<float>(p, name, a, 1, nullptr);
    else if (name == "masks") s.masks = place<uint32_t>(p, name, a, 2, &s.masks_stride);
    else if (name == "chosen_ids") s.chosen_ids = place<int32_t>(p, name, a, 1, nullptr);
    else if (name == "chosen_logprobs") s.chosen_logprobs = place<float>(p, name, a, 1, nullptr);
    else if (name == "top_ids") s.top_ids = place<int32_t>(p, name, a, 2, &s.top_stride);
    else if (name == "top_logprobs") s.top_logprobs = place<float>(p, name, a, 2, nullptr);
    else if (name == "score_top_ids") {
        int64_t width = 0;
        s.score_top_ids = place<int32_t>(p, name, a, 2, &width);
        s.score_top = int32_t(width);
    } else if (name == "score_top_logprobs") s.score_top_logprobs = place<float>(p, name, a, 2, nullptr);
    else
        throw std::invalid_argument("there is no array '" + name + "' to set; these exist: counts, seen, bias_ids, bias_values, "
                                    "masks, chosen_ids, chosen_logprobs, top_ids, top_logprobs, score_top_ids, score_top_logprobs");
}

void linear(Program& p, const std::string& name, const Buffer& x, const Buffer& y, const PyWeight& w,
            std::optional<Array1<const float>> bias, const Buffer* residual, const std::string& gate) {
    std::vector<float> b;
    if (bias) b.assign(bias->data(), bias->data() + bias->shape(0));
    if (bias && b.empty()) throw std::invalid_argument("linear '" + name + "': the bias is empty");
    Gate g = GATE_NONE;
    if (gate == "silu") g = GATE_SILU;
    else if (gate == "gelu_tanh") g = GATE_GELU_TANH;
    else if (!gate.empty()) throw std::invalid_argument("linear '" + name + "': a gate is silu or gelu_tanh, not '" + gate + "'");
    add_linear(p, name, x, y, w.weight, b, residual, g);
}

void run_logits(Program& p, int T, int R, int S, int P, nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    if (int64_t(out.shape(0)) != int64_t(S) + P || int64_t(out.shape(1)) != p.options().vocab)
        throw std::invalid_argument("logits take an array of [S + P, vocab]");
    nb::gil_scoped_release released;
    p.logits_out = out.data();
    try {
        p.run(T, R, S, P);
    } catch (...) {
        p.logits_out = nullptr;
        throw;
    }
    p.logits_out = nullptr;
}

// A block of bytes as the caller's own memory (tests, shared memory between ranks).
void set_kv(Program& p, nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> kv, int64_t block_bytes) {
    if (block_bytes < 1 || kv.shape(0) % size_t(block_bytes)) throw std::invalid_argument("the KV array must hold whole blocks");
    p.set_kv(reinterpret_cast<char*>(kv.data()), block_bytes, int64_t(kv.shape(0)) / block_bytes,
             std::make_shared<decltype(kv)>(kv));
}

nb::ndarray<nb::numpy, uint8_t> kv_array(nb::object self) {
    Program& p = nb::cast<Program&>(self);
    if (!p.kv()) throw std::invalid_argument("KV memory has not been allocated");
    return nb::ndarray<nb::numpy, uint8_t>(p.kv(), {size_t(p.num_blocks()), size_t(p.block_bytes())}, self);
}

nb::ndarray<nb::numpy, float> read_buffer(nb::object self, const Buffer& b, int rows) {
    const Program& p = nb::cast<Program&>(self);
    if (rows < 1 || b.view.stride % 4 || b.offset + (rows - 1) * b.view.stride + int64_t(b.view.width) * 4 > p.arena_bytes())
        throw std::out_of_range("these rows lie outside the arena");
    return nb::ndarray<nb::numpy, float>(b.view.data, {size_t(rows), size_t(b.view.width)}, self, {b.view.stride / 4, 1});
}

void raise_fault(const std::exception_ptr& p, void*) {
    try {
        std::rethrow_exception(p);
    } catch (const Fault& f) {
        nb::object type = nb::module_::import_("octavo.errors").attr("KernelFault");
        nb::object error = type(f.what(), nb::arg("op") = f.op, nb::arg("position") = f.position);
        PyErr_SetObject(type.ptr(), error.ptr());
    }
}

}  // namespace

void bind_program(nb::module_& m) {
    nb::register_exception_translator(raise_fault);
    nb::class_<Buffer>(m, "Buffer", "Columns of the arena.")
        .def_prop_ro("width", [](const Buffer& b) { return b.view.width; })
        .def_prop_ro("stride", [](const Buffer& b) { return b.view.stride; })
        .def_ro("offset", &Buffer::offset)
        .def_prop_ro("rows", [](const Buffer& b) { return b.rows == ROWS_TOKENS ? "tokens" : "samples"; });

    nb::class_<TeamSize>(m, "TeamSize", "How many threads are worth using now (team_size.h).")
        .def(nb::init<int>(), nb::arg("most"))
        .def_prop_ro("now", &TeamSize::now)
        .def_prop_ro("changes", &TeamSize::changes)
        .def("saw", &TeamSize::saw, nb::arg("wall_ns"), nb::arg("work_ns"));

    nb::class_<Program>(m, "Program")
        .def("__init__", [](Program* self, int max_tokens, int max_rows, int num_groups, int table_width, int block_size,
                            int vocab, int num_threads, const std::string& isa, int64_t arena_bytes) {
            new (self) Program({max_tokens, max_rows, num_groups, table_width, block_size, vocab, num_threads, isa, arena_bytes});
        }, nb::arg("max_tokens"), nb::arg("max_rows"), nb::arg("num_groups"), nb::arg("table_width"), nb::arg("block_size"),
           nb::arg("vocab"), nb::arg("num_threads"), nb::arg("isa"), nb::arg("arena_bytes"))
        .def("view", [](const Program& p, int64_t offset, int64_t stride, int width, const std::string& rows) {
            if (rows != "tokens" && rows != "samples") throw std::invalid_argument("rows are tokens or samples, not '" + rows + "'");
            return p.view(offset, stride, width, rows == "tokens" ? ROWS_TOKENS : ROWS_SAMPLES);
        }, nb::arg("offset"), nb::arg("stride"), nb::arg("width"), nb::arg("rows") = "tokens")
        .def("linear", &linear, nb::arg("name"), nb::arg("x"), nb::arg("y"), nb::arg("weight"), nb::arg("bias") = nb::none(),
             nb::arg("residual") = nb::none(), nb::arg("gate") = "")
        .def("logits", [](Program& p, const std::string& name, const Buffer& x, const PyWeight& w, float softcap) {
            add_logits(p, name, x, w.weight, softcap);
        }, nb::arg("name"), nb::arg("x"), nb::arg("weight"), nb::arg("softcap") = 0.0f)
        .def("io", [](nb::object self, const std::string& name) { return io(self, name); }, nb::arg("name"),
             nb::sig("def io(self, name: str) -> NDArray[typing.Any]"), "A metadata array, in place.")
        .def("io_names", &Program::array_names)
        .def("set_array", &set_array, nb::arg("name"), nb::arg("array").none(),
             nb::sig("def set_array(self, name: str, array: NDArray[typing.Any] | None) -> None"))
        .def_prop_rw("processed_logprobs", [](const Program& p) { return p.sampler.processed_logprobs; },
                     [](Program& p, bool on) { p.sampler.processed_logprobs = on; })
        .def_prop_rw("reports_logits", [](const Program& p) { return p.sampler.reports_logits; },
                     [](Program& p, bool on) { p.sampler.reports_logits = on; })
        .def("set_kv", &set_kv, nb::arg("array"), nb::arg("block_bytes"))
        .def("allocate_kv", &Program::allocate_kv, nb::arg("block_bytes"), nb::arg("num_blocks"))
        .def("kv", &kv_array, "[num_blocks, block_bytes] uint8, in place.")
        .def("set_windows", &Program::set_windows, nb::arg("windows"))
        .def("run", &Program::run, nb::arg("T"), nb::arg("R"), nb::arg("S"), nb::arg("P") = 0,
             nb::call_guard<nb::gil_scoped_release>())
        .def("run_on", &Program::run_on, nb::arg("rows"), nb::call_guard<nb::gil_scoped_release>(),
             "The step before once more, each of its rows one token further.")
        .def("redraw", &Program::redraw, nb::arg("rows"), nb::call_guard<nb::gil_scoped_release>(),
             "Draws again for sampling rows of the step before, from the logits that it kept.")
        .def("run_logits", &run_logits, nb::arg("T"), nb::arg("R"), nb::arg("S"), nb::arg("P"), nb::arg("out"))
        .def("array", &read_buffer, nb::arg("buffer"), nb::arg("rows"), "Rows of a buffer, in place.")
        .def("profile", &Program::profile, nb::arg("on"))
        .def("times", [](const Program& p) {
            std::vector<std::tuple<std::string, int64_t, int64_t>> out;
            for (const auto& t : p.times()) out.emplace_back(t.name, t.runs, t.ns);
            return out;
        }, "(op, runs, nanoseconds) since profile(True).")
        .def_prop_rw("adaptive", &Program::adaptive, &Program::set_adaptive,
                     "Whether the thread team may use fewer threads where that gets more done.")
        .def("waits", [](const Program& p) {
            const Waits w = p.waits();
            nb::dict d;
            d["steps"] = w.steps, d["wall_ns"] = w.wall_ns, d["thread_ns"] = w.thread_ns, d["wait_ns"] = w.wait_ns;
            d["sleeps"] = w.sleeps, d["late"] = w.late, d["threads"] = w.threads, d["resizes"] = w.resizes;
            return d;
        }, nb::sig("def waits(self) -> dict[str, int]"), "What the threads waited for each other since reset_waits().")
        .def("reset_waits", &Program::reset_waits)
        .def_prop_ro("names", &Program::names)
        .def_prop_ro("isa", [](const Program& p) { return p.kernels().isa; })
        .def_prop_ro("num_threads", [](const Program& p) { return p.options().num_threads; })
        .def("memory", [](const Program& p) {
            nb::dict d;
            d["arena"] = p.arena_bytes();
            d["operands"] = p.operand_bytes();
            d["scratch"] = p.scratch_bytes();
            d["kv"] = p.block_bytes() * p.num_blocks();
            return d;
        }, nb::sig("def memory(self) -> dict[str, int]"), "Bytes by name.");
}

}  // namespace octavo
