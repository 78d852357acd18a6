// The parts of the Python module.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "formats.h"

namespace octavo {

namespace nb = nanobind;

void bind_linear(nb::module_& m);   // formats, packing, dequantising
void bind_program(nb::module_& m);  // Program, Buffer, Fault
void bind_ops(nb::module_& m);      // every other op

// Weight as Python holds it.
struct PyWeight {
    Weight weight;
    bool lossless = true;  // every value of the file is kept exactly
};

template <class T> using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

}  // namespace octavo
