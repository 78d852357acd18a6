#include "isa.h"

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {

namespace {

KernelTable empty(const char* isa) {
    KernelTable t;
    t.isa = isa;
    return t;
}

#ifdef OCTAVO_HAVE_linear
#define OCTAVO_SET_linear(t, ns) t.linear = &ns::linear_kernels();
#else
#define OCTAVO_SET_linear(t, ns)
#endif
#ifdef OCTAVO_HAVE_attention
#define OCTAVO_SET_attention(t, ns) t.attention = &ns::attention_kernels();
#else
#define OCTAVO_SET_attention(t, ns)
#endif
#ifdef OCTAVO_HAVE_elementwise
#define OCTAVO_SET_elementwise(t, ns) t.elementwise = &ns::elementwise_kernels();
#else
#define OCTAVO_SET_elementwise(t, ns)
#endif
#ifdef OCTAVO_HAVE_norm
#define OCTAVO_SET_norm(t, ns) t.norm = &ns::norm_kernels();
#else
#define OCTAVO_SET_norm(t, ns)
#endif
#ifdef OCTAVO_HAVE_rope
#define OCTAVO_SET_rope(t, ns) t.rope = &ns::rope_kernels();
#else
#define OCTAVO_SET_rope(t, ns)
#endif
#ifdef OCTAVO_HAVE_sampler
#define OCTAVO_SET_sampler(t, ns) t.sampler = &ns::sampler_kernels();
#else
#define OCTAVO_SET_sampler(t, ns)
#endif

#define OCTAVO_TABLE(ns)                                       \
    const KernelTable& table_##ns() {                          \
        static const KernelTable table = [] {                  \
            KernelTable t = empty(#ns);                        \
            OCTAVO_SET_linear(t, ns)                           \
            OCTAVO_SET_attention(t, ns)                        \
            OCTAVO_SET_elementwise(t, ns)                      \
            OCTAVO_SET_norm(t, ns)                             \
            OCTAVO_SET_rope(t, ns)                             \
            OCTAVO_SET_sampler(t, ns)                          \
            return t;                                          \
        }();                                                   \
        return table;                                          \
    }

OCTAVO_TABLE(generic)
#if defined(__x86_64__)
OCTAVO_TABLE(avx2)
OCTAVO_TABLE(avx512)
OCTAVO_TABLE(avx512_bf16)
const KernelTable& table_avx512_bf16_dot() {
    static const KernelTable table = [] {
        KernelTable t = table_avx512_bf16();
        t.isa = "avx512_bf16_dot";
        t.linear = &avx512_bf16::linear_dot_kernels();
        t.attention = &avx512_bf16::attention_dot_kernels();
        return t;
    }();
    return table;
}
const KernelTable& table_avx512_amx() {
    static const KernelTable table = [] {
        KernelTable t = table_avx512_bf16();
        t.isa = "avx512_amx";
        t.linear = &avx512_amx::linear_kernels();
        t.attention = &avx512_amx::attention_kernels();
        return t;
    }();
    return table;
}
#elif defined(__aarch64__)
OCTAVO_TABLE(neon)
#endif

struct Choice {
    const char* name;
    bool available;
    const KernelTable& (*table)();
    bool variant = false;
};

#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
}
bool has_avx512_bf16() {
    return has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
bool has_avx512_amx() {
    return has_avx512_bf16() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("amx-bf16") &&
           __builtin_cpu_supports("amx-int8") && may_use_tiles();
}
#endif

// Every set of this architecture, best last.
const std::vector<Choice>& choices() {
    static const std::vector<Choice> all = [] {
#if defined(__x86_64__)
        __builtin_cpu_init();
#endif
        return std::vector<Choice>{
            {"generic", true, table_generic},
#if defined(__x86_64__)
            {"avx2", has_avx2(), table_avx2},
            {"avx512", has_avx512(), table_avx512},
            {"avx512_bf16", has_avx512_bf16(), table_avx512_bf16},
            {"avx512_bf16_dot", has_avx512_bf16(), table_avx512_bf16_dot, true},
            {"avx512_amx", has_avx512_amx(), table_avx512_amx},
#elif defined(__aarch64__)
            {"neon", true, table_neon},
#endif
        };
    }();
    return all;
}

const Choice& find(const std::string& isa) {
    std::string runnable;
    for (const auto& c : choices()) {
        if (isa == c.name && c.available) return c;
        if (c.available && !c.variant) runnable += (runnable.empty() ? "" : ", ") + std::string(c.name);
    }
    for (const auto& c : choices())
        if (isa == c.name) throw std::invalid_argument("this CPU lacks the instruction set '" + isa + "'; it can run: " + runnable);
    throw std::invalid_argument("there is no instruction set '" + isa + "'; this CPU can run: " + runnable);
}

}  // namespace

bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    static const bool may = [] {
        __builtin_cpu_init();
        return __builtin_cpu_supports("amx-tile") && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }();
    return may;
#else
    return false;
#endif
}

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const auto& c : choices())
        if (c.available && !c.variant) names.push_back(c.name);
    return names;
}

std::vector<std::string> kernel_variants() {
    std::vector<std::string> names;
    for (const auto& c : choices())
        if (c.available) names.push_back(c.name);
    return names;
}

std::string best_isa() {
    const char* forced = std::getenv("OCTAVO_ISA");
    if (forced && *forced) return find(forced).name;
    return available_isas().back();
}

const KernelTable& kernel_table(const std::string& isa) { return find(isa).table(); }

}  // namespace octavo
