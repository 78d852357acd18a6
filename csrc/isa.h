// Instruction sets: every csrc/<family>_kernels.cpp is compiled once per set, with its symbols in
// namespace octavo::OCTAVO_ISA (generic, avx2, avx512, avx512_bf16 or neon), and exports one table:
//
//     namespace octavo::OCTAVO_ISA { const AttentionKernels& attention_kernels(); }
//
// avx512_amx is avx512_bf16 but for linear_amx.cpp and attention_amx.cpp.
//
// The compiler's own macros (__AVX2__, __AVX512F__, __AVX512BF16__, __ARM_NEON) say which intrinsics
// a file may use. A kernel file must not instantiate inline functions shared with other files
// (std::vector, std::sort, inline functions outside its namespace): the linker keeps one copy of
// each, perhaps one that uses instructions this CPU lacks. Static functions and templates inside
// OCTAVO_ISA (an anonymous namespace is best) are safe.
#pragma once
#include <string>
#include <vector>

#include "op.h"

namespace octavo {

struct LinearKernels;       // linear.h
struct AttentionKernels;    // this and the rest: ops.h
struct ElementwiseKernels;
struct NormKernels;
struct RopeKernels;
struct SamplerKernels;

// The kernels of one instruction set. A family without a file (OCTAVO_HAVE_<family>, set by CMake
// from the files it finds) has a null pointer.
struct KernelTable {
    const char* isa = "";
    const LinearKernels* linear = nullptr;
    const AttentionKernels* attention = nullptr;
    const ElementwiseKernels* elementwise = nullptr;
    const NormKernels* norm = nullptr;
    const RopeKernels* rope = nullptr;
    const SamplerKernels* sampler = nullptr;
};

#define OCTAVO_DECLARE_ISA(ns)                        \
    namespace ns {                                    \
    const LinearKernels& linear_kernels();            \
    const AttentionKernels& attention_kernels();      \
    const ElementwiseKernels& elementwise_kernels();  \
    const NormKernels& norm_kernels();                \
    const RopeKernels& rope_kernels();                \
    const SamplerKernels& sampler_kernels();          \
    }
OCTAVO_DECLARE_ISA(generic)
OCTAVO_DECLARE_ISA(avx2)
OCTAVO_DECLARE_ISA(avx512)
OCTAVO_DECLARE_ISA(avx512_bf16)
OCTAVO_DECLARE_ISA(neon)
namespace avx512_bf16 {  // vdpbf16ps whatever the CPU's maker
const LinearKernels& linear_dot_kernels();
const AttentionKernels& attention_dot_kernels();
}
namespace avx512_amx {  // *_amx.cpp; its other families are those of avx512_bf16
const LinearKernels& linear_kernels();
const AttentionKernels& attention_kernels();
}
#undef OCTAVO_DECLARE_ISA

// Whether the CPU has a tile unit and the kernel lets this process use it. Asks for that, once, for all threads that
// there are and will be, and for forked processes.
bool may_use_tiles();

// Names of the sets that this CPU can run, best last.
std::vector<std::string> available_isas();
// These and variants that are never chosen by themselves, for tests: "avx512_bf16_dot".
std::vector<std::string> kernel_variants();
// The best set, or the one that OCTAVO_ISA in the environment names.
std::string best_isa();
// Throws std::invalid_argument when the name is unknown or this CPU lacks the set.
const KernelTable& kernel_table(const std::string& isa);

}  // namespace octavo
