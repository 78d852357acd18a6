#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bind.h"
#include "isa.h"
#include "linear.h"
#include "memory.h"
#include "pack.h"

namespace octavo {

namespace {

// (type, bytes, rows, cols, row order)
using PyPart = std::tuple<std::string, Array1<const uint8_t>, int64_t, int64_t, std::optional<Array1<const int32_t>>>;

Part to_part(const PyPart& p) {
    Part part;
    part.type = parse_type(std::get<0>(p));
    part.data = std::get<1>(p).data();
    part.bytes = std::get<1>(p).shape(0);
    part.rows = std::get<2>(p), part.cols = std::get<3>(p);
    const auto& order = std::get<4>(p);
    if (order) part.order = order->data(), part.order_size = order->shape(0);
    return part;
}

PyWeight pack_parts(const std::vector<PyPart>& given, const std::string& format, bool interleave, int num_threads) {
    std::vector<Part> parts;
    for (const auto& p : given) parts.push_back(to_part(p));
    PyWeight out;
    const Format f = format == "file" ? natural_format(parts) : parse_format(format);
    nb::gil_scoped_release released;
    out.weight = pack(parts, f, interleave, num_threads);
    for (const auto& p : parts) out.lossless = out.lossless && is_lossless(p.type, f);
    return out;
}

template <class T>
nb::ndarray<nb::numpy, T> to_numpy(T* data, std::initializer_list<size_t> shape) {
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T>(data, shape, owner);
}

nb::ndarray<nb::numpy, float> dequantise_part(const std::string& type, Array1<const uint8_t> data, int64_t rows,
                                              int64_t cols, std::optional<Array1<const int32_t>> order, int num_threads) {
    const Part part = to_part({type, data, rows, cols, order});
    if (rows < 1 || cols < 1 || row_bytes(part.type, cols) * rows != int64_t(part.bytes))
        throw std::invalid_argument(type + " [" + std::to_string(rows) + ", " + std::to_string(cols) + "] does not take " +
                                    std::to_string(part.bytes) + " bytes");
    float* out = new float[size_t(rows) * size_t(cols)];
    auto array = to_numpy(out, {size_t(rows), size_t(cols)});
    nb::gil_scoped_release released;
    dequantise(part, out, num_threads);
    return array;
}

using Bytes = nb::ndarray<nb::numpy, const uint8_t>;

// Bytes in place; they stay as long as the array does.
Bytes kept_bytes(const std::shared_ptr<char>& data, size_t size) {
    auto* kept = new std::shared_ptr<char>(data);
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<char>*>(p); });
    return Bytes(kept->get(), {size}, owner);
}

// A file of packed matrices, mapped to read.
struct PackMap {
    std::shared_ptr<char> data;
    int64_t size = 0;

    PackMap(int fd, int64_t bytes) : size(bytes) {
        if (bytes < 1) throw std::invalid_argument("an empty file cannot be mapped");
        data = map_file(fd, size_t(bytes));
    }

    PyWeight weight(const std::string& format, int64_t rows, int64_t cols, bool interleave, bool lossless, int64_t offset) const {
        PyWeight out;
        out.weight = shaped(parse_format(format), rows, cols, interleave);
        out.lossless = lossless;
        if (offset < 0 || offset % 64 || offset > size || out.weight.bytes() > size - offset)
            throw std::invalid_argument("the file does not hold a matrix at " + std::to_string(offset));
        out.weight.data = std::shared_ptr<char>(data, data.get() + offset);
        return out;
    }
};

nb::ndarray<nb::numpy, double> unpack_weight(const PyWeight& w) {
    const auto values = unpack(w.weight);
    double* out = new double[values.size()];
    std::memcpy(out, values.data(), values.size() * sizeof(double));
    return to_numpy(out, {size_t(w.weight.rows), size_t(w.weight.cols)});
}

// Rows of f32 as the kernels of `isa` would see them beside `format`, in float64.
nb::ndarray<nb::numpy, double> operand_values(Array2<const float> x, const std::string& format, const std::string& isa) {
    const LinearKernels& kernels = *kernel_table(isa).linear;
    const OperandKind kind = kernels.operand[parse_format(format)];
    const int64_t rows = int64_t(x.shape(0)), cols = int64_t(x.shape(1)), groups = (cols + GROUP - 1) / GROUP;
    double* out = new double[size_t(rows * cols)];
    auto array = to_numpy(out, {size_t(rows), size_t(cols)});
    const char* data = reinterpret_cast<const char*>(x.data());
    const int64_t stride = operand_stride(kind, groups);
    std::vector<char> space(kind == OPERAND_F32 ? 0 : size_t(rows * stride));
    if (kind == OPERAND_BF16) kernels.prepare_bf16(data, cols * 4, nullptr, cols, groups, space.data(), stride, 0, rows * groups);
    if (kind == OPERAND_INT8) kernels.prepare_int8(data, cols * 4, nullptr, cols, groups, space.data(), stride, 0, rows * groups);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < cols; k++) {
            const char* row = space.data() + r * stride;
            double& value = out[r * cols + k];
            if (kind == OPERAND_F32) {
                value = x.data()[r * cols + k];
            } else if (kind == OPERAND_BF16) {
                uint16_t h;
                std::memcpy(&h, row + 2 * k, 2);
                const uint32_t bits = uint32_t(h) << 16;
                float f;
                std::memcpy(&f, &bits, 4);
                value = f;
            } else {
                GroupScale scale;
                std::memcpy(&scale, row + groups * GROUP + k / GROUP * int64_t(sizeof scale), sizeof scale);
                value = double(scale.scale) * int8_t(row[k]);
            }
        }
    return array;
}

}  // namespace

void bind_linear(nb::module_& m) {
    nb::class_<PyWeight>(m, "Weight", "A matrix packed for the linear kernels; holds its own memory.")
        .def_prop_ro("format", [](const PyWeight& w) { return format_name(w.weight.format); })
        .def_prop_ro("rows", [](const PyWeight& w) { return w.weight.rows; })
        .def_prop_ro("cols", [](const PyWeight& w) { return w.weight.cols; })
        .def_prop_ro("interleaved", [](const PyWeight& w) { return w.weight.interleaved; })
        .def_prop_ro("nbytes", [](const PyWeight& w) { return w.weight.bytes(); })
        .def_ro("lossless", &PyWeight::lossless)
        .def("packed", [](const PyWeight& w) { return kept_bytes(w.weight.data, size_t(w.weight.bytes())); },
             "The packed bytes [nbytes] uint8, in place, to read.")
        .def("unpack", &unpack_weight, "Exact values [rows, cols] float64, in the order of the parts' rows.");
    m.def("pack", &pack_parts, nb::arg("parts"), nb::arg("format") = "file", nb::arg("interleave") = false,
          nb::arg("num_threads") = 1);
    m.attr("PACKING_VERSION") = PACKING_VERSION;
    nb::class_<PackMap>(m, "PackMap", "A file of packed matrices, mapped to read; the matrices keep the map.")
        .def(nb::init<int, int64_t>(), nb::arg("fd"), nb::arg("bytes"))
        .def("bytes", [](const PackMap& map) { return kept_bytes(map.data, size_t(map.size)); }, "[bytes] uint8, in place.")
        .def("weight", &PackMap::weight, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("interleave"),
             nb::arg("lossless"), nb::arg("offset"), "The matrix whose packed bytes begin at `offset`, a multiple of 64.");
    m.def("dequantise", &dequantise_part, nb::arg("type"), nb::arg("data"), nb::arg("rows"), nb::arg("cols"),
          nb::arg("order") = nb::none(), nb::arg("num_threads") = 1);
    m.def("natural_format", [](const std::string& type) { return format_name(natural_format(parse_type(type))); }, nb::arg("type"));
    m.def("is_lossless", [](const std::string& type, const std::string& format) {
        return is_lossless(parse_type(type), parse_format(format));
    }, nb::arg("type"), nb::arg("format"));
    m.def("tensor_types", &type_names);
    m.def("operand_values", &operand_values, nb::arg("x"), nb::arg("format"), nb::arg("isa"));
}

}  // namespace octavo
