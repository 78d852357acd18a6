#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "isa.h"
#include "limits.h"

NB_MODULE(_native, m) {
    m.doc() = "The native core of Octavo: see octavo.kernels.native.";
    m.def("available_isas", &octavo::available_isas, "Instruction sets that this CPU can run, best last.");
    m.def("kernel_variants", &octavo::kernel_variants, "These, and variants that are never chosen by themselves.");
    m.def("best_isa", &octavo::best_isa, "The best set, or the one that OCTAVO_ISA names.");
    using nanobind::arg;
    m.def("read_speed", &octavo::read_speed, arg("bytes"), arg("num_threads"), arg("at_least_s"), "Bytes per second, the best pass.");
    m.def("compute_kinds", &octavo::compute_kinds, arg("isa"), "Kinds of arithmetic that compute_speed measures.");
    m.def("compute_speed", &octavo::compute_speed, arg("kind"), arg("isa"), arg("num_threads"), arg("at_least_s"),
          "Operations per second, the best pass.");
    octavo::bind_linear(m);
    octavo::bind_program(m);
#ifdef OCTAVO_HAVE_BIND_OPS
    octavo::bind_ops(m);
#endif
}
