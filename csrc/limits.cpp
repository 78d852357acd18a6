// What the machine can do at most: how fast it reads memory, and how fast it multiplies and adds numbers of each type.
//
// Loops without any other work, on the same thread team and the same kind of memory as the kernels. One file
// compiled for the baseline: each loop names its own instruction set.
#include "limits.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>

#include "isa.h"
#include "memory.h"
#include "team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace octavo {

namespace {

using clock = std::chrono::steady_clock;

double seconds_since(clock::time_point from) { return std::chrono::duration<double>(clock::now() - from).count(); }

// ---- reading -----------------------------------------------------------------------------------------

uint64_t read_generic(const char* p, size_t bytes, size_t) {
    const uint64_t* v = reinterpret_cast<const uint64_t*>(p);
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i + 4 <= bytes / 8; i += 4) a ^= v[i], b ^= v[i + 1], c ^= v[i + 2], d ^= v[i + 3];
    return a ^ b ^ c ^ d;
}

// How many bytes ahead a pass fetches: what is best depends on where the piece lies, so passes take turns. Beyond a page's
// end the hardware's own prefetcher starts anew.
constexpr size_t AHEAD[] = {1024, 4096, 8192};
constexpr size_t FARTHEST = 8192;

#if defined(__x86_64__)

__attribute__((target("avx2"))) uint64_t read_avx2(const char* p, size_t bytes, size_t ahead) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i + 128 <= bytes; i += 128) {
        _mm_prefetch(p + i + ahead, _MM_HINT_T0);
        _mm_prefetch(p + i + ahead + 64, _MM_HINT_T0);
        const __m256i* v = reinterpret_cast<const __m256i*>(p + i);
        a = _mm256_xor_si256(a, _mm256_loadu_si256(v)), b = _mm256_xor_si256(b, _mm256_loadu_si256(v + 1));
        c = _mm256_xor_si256(c, _mm256_loadu_si256(v + 2)), d = _mm256_xor_si256(d, _mm256_loadu_si256(v + 3));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return uint64_t(_mm256_extract_epi64(a, 0) ^ _mm256_extract_epi64(a, 1) ^ _mm256_extract_epi64(a, 2) ^
                    _mm256_extract_epi64(a, 3));
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const char* p, size_t bytes, size_t ahead) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= bytes; i += 256) {
        for (size_t line = 0; line < 256; line += 64) _mm_prefetch(p + i + ahead + line, _MM_HINT_T0);
        a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i)), b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128)), d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
    }
    alignas(64) uint64_t lanes[8];
    _mm512_store_si512(lanes, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
    return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3] ^ lanes[4] ^ lanes[5] ^ lanes[6] ^ lanes[7];
}
#endif

using Read = uint64_t (*)(const char*, size_t, size_t);

Read best_read() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return read_avx512;
    if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
    return read_generic;  // 128-bit registers and the hardware's prefetcher are enough elsewhere
}

// ---- multiplying -------------------------------------------------------------------------------------

// A loop does `rounds` rounds of independent multiply-adds and returns how many operations that were (a multiply
// and an add are two). Sixteen accumulators hide the latency of every unit; the empty asm keeps each one alive
// and unknown, so that no round is folded into another.
using Compute = double (*)(int64_t rounds);

#define KEEP12(x, how)                                                                   \
    asm volatile("" : how(x[0]), how(x[1]), how(x[2]), how(x[3]), how(x[4]), how(x[5])); \
    asm volatile("" : how(x[6]), how(x[7]), how(x[8]), how(x[9]), how(x[10]), how(x[11]))
#define KEEP16(x, how) \
    KEEP12(x, how);    \
    asm volatile("" : how(x[12]), how(x[13]), how(x[14]), how(x[15]))
#if defined(__x86_64__)
#define OCTAVO_REGISTER "+x"
#elif defined(__aarch64__)
#define OCTAVO_REGISTER "+w"
#else
#define OCTAVO_REGISTER "+m"
#endif

#if defined(__x86_64__)
#define OCTAVO_LOOP(name, isa, type, zero, body, ops)                    \
    __attribute__((target(isa))) double name(int64_t rounds) {           \
        type acc[16], a = zero, b = zero;                                \
        asm volatile("" : "+v"(a), "+v"(b));                             \
        for (auto& x : acc) x = zero;                                    \
        for (int64_t r = 0; r < rounds; r++) {                           \
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) body;  \
            KEEP16(acc, "+v");                                           \
        }                                                                \
        return double(rounds) * 16 * (ops);                              \
    }

OCTAVO_LOOP(f32_avx512, "avx512f", __m512, _mm512_setzero_ps(), acc[i] = _mm512_fmadd_ps(a, b, acc[i]), 32)
OCTAVO_LOOP(bf16_avx512, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(),
            acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)a, (__m512bh)b), 64)
OCTAVO_LOOP(int8_vnni, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), acc[i] = _mm512_dpbusd_epi32(acc[i], a, b), 128)
OCTAVO_LOOP(int8_avx512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(),
            acc[i] = _mm512_add_epi32(acc[i], _mm512_madd_epi16(_mm512_maddubs_epi16(a, acc[i]), b)), 128)
#undef OCTAVO_LOOP
// Twelve accumulators: AVX2 has sixteen registers.
#define OCTAVO_LOOP(name, isa, type, zero, body, ops)                    \
    __attribute__((target(isa))) double name(int64_t rounds) {           \
        type acc[12], a = zero, b = zero;                                \
        asm volatile("" : "+x"(a), "+x"(b));                             \
        for (auto& x : acc) x = zero;                                    \
        for (int64_t r = 0; r < rounds; r++) {                           \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) body;  \
            KEEP12(acc, "+x");                                           \
        }                                                                \
        return double(rounds) * 12 * (ops);                              \
    }
OCTAVO_LOOP(f32_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), acc[i] = _mm256_fmadd_ps(a, b, acc[i]), 16)
OCTAVO_LOOP(int8_avx2, "avx2", __m256i, _mm256_setzero_si256(),
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, acc[i]), b)), 64)

// The tile unit, which a process has to ask for (isa.h). Four tiles of sums, so that each product waits for none.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};

// The intrinsics of tiles are statements, and their operands literals.
#define OCTAVO_TILES(name, isa, product, ops)                             \
    __attribute__((target("amx-tile," isa))) double name(int64_t rounds) { \
        const TileConfig config;                                          \
        asm volatile("" : : "r"(&config) : "memory"); /* all of it, which the intrinsic does not say */ \
        _tile_loadconfig(&config);                                        \
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);       \
        _tile_zero(4); _tile_zero(5);                                     \
        for (int64_t r = 0; r < rounds; r++) {                            \
            product(0, 4, 5); product(1, 4, 5);                           \
            product(2, 4, 5); product(3, 4, 5);                           \
        }                                                                 \
        _tile_release();                                                  \
        return double(rounds) * 4 * (ops);                                \
    }
OCTAVO_TILES(bf16_tiles, "amx-bf16", _tile_dpbf16ps, 16 * 16 * 32 * 2)
OCTAVO_TILES(int8_tiles, "amx-int8", _tile_dpbusd, 16 * 16 * 64 * 2)
#endif

// Four floats in a register, in every architecture's baseline.
double f32_generic(int64_t rounds) {
    typedef float Four __attribute__((vector_size(16)));
    Four acc[12] = {}, a = {}, b = {};
    asm volatile("" : OCTAVO_REGISTER(a), OCTAVO_REGISTER(b));
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] += a * b;
        KEEP12(acc, OCTAVO_REGISTER);
    }
    return double(rounds) * 12 * 8;
}

#if defined(__aarch64__)
double f32_neon(int64_t rounds) {
    float32x4_t acc[16], a = vdupq_n_f32(0), b = a;
    for (auto& x : acc) x = a;
    for (int64_t r = 0; r < rounds; r++) {
        for (auto& x : acc) x = vfmaq_f32(x, a, b);
        KEEP16(acc, "+w");
    }
    return double(rounds) * 16 * 8;
}

__attribute__((target("arch=armv8.2-a+dotprod"))) double int8_neon(int64_t rounds) {
    int32x4_t acc[16];
    const int8x16_t a = vdupq_n_s8(0), b = a;
    for (auto& x : acc) x = vdupq_n_s32(0);
    for (int64_t r = 0; r < rounds; r++) {
        for (auto& x : acc) x = vdotq_s32(x, a, b);
        KEEP16(acc, "+w");
    }
    return double(rounds) * 16 * 32;
}
#endif

struct Kind {
    const char* name;
    Compute loop;
};

#if defined(__x86_64__)
std::vector<Kind> vector_kinds(const std::string& isa) {
    if (isa == "avx512_amx") return {{"f32", f32_avx512}, {"bf16", bf16_tiles}, {"int8", int8_vnni}};
    if (isa.rfind("avx512_bf16", 0) == 0) return {{"f32", f32_avx512}, {"bf16", bf16_avx512}, {"int8", int8_vnni}};
    if (isa == "avx512") return {{"f32", f32_avx512}, {"bf16", f32_avx512}, {"int8", int8_avx512}};
    if (isa == "avx2") return {{"f32", f32_avx2}, {"bf16", f32_avx2}, {"int8", int8_avx2}};
    return {{"f32", f32_generic}, {"bf16", f32_generic}, {"int8", f32_generic}};
}
#endif

// What this CPU can do, by name. "f32", "bf16" and "int8" are the best that `isa` has for
// those formats; the "tile" kinds are the tile unit, whatever the kernels use.
std::vector<Kind> kinds(const std::string& isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    std::vector<Kind> all = vector_kinds(isa);
    const bool tiles = may_use_tiles();
    if (tiles && __builtin_cpu_supports("amx-bf16")) all.push_back({"bf16 tile", bf16_tiles});
    if (tiles && __builtin_cpu_supports("amx-int8")) all.push_back({"int8 tile", int8_tiles});
    return all;
#elif defined(__aarch64__)
    if (isa == "neon") return {{"f32", f32_neon}, {"bf16", f32_neon}, {"int8", int8_neon}};
#endif
    return {{"f32", f32_generic}, {"bf16", f32_generic}, {"int8", f32_generic}};
}

}  // namespace

double read_speed(size_t bytes, int num_threads, double at_least_s) {
    if (num_threads < 1 || bytes < size_t(num_threads) * 4096)
        throw std::invalid_argument("reading takes at least one thread and 4096 bytes for each");
    Memory memory(bytes + FARTHEST);  // prefetches run past the end
    std::fill(memory.data(), memory.data() + bytes, char(1));
    Team team(num_threads, 64);
    const Read read = best_read();
    const size_t share = bytes / size_t(num_threads) / 64 * 64;
    // Short passes are repeated inside one job, so that waking the team does not count.
    const int repeats = int(std::max<size_t>(1, (size_t(16) << 20) / bytes));
    std::vector<uint64_t> sinks(size_t(num_threads) * 8);
    double best = 0;
    const auto start = clock::now();
    for (size_t pass = 0; pass < std::size(AHEAD) || seconds_since(start) < at_least_s; pass++) {
        const size_t ahead = AHEAD[pass % std::size(AHEAD)];
        const auto from = clock::now();
        team.run([&](const Ctx& ctx) {
            for (int i = 0; i < repeats; i++)
                sinks[size_t(ctx.tid) * 8] += read(memory.data() + size_t(ctx.tid) * share, share, ahead);
        });
        best = std::max(best, double(share) * num_threads * repeats / seconds_since(from));
        asm volatile("" : : "r"(sinks.data()) : "memory");
    }
    return best;
}

std::vector<std::string> compute_kinds(const std::string& isa) {
    std::vector<std::string> names;
    for (const Kind& k : kinds(isa)) names.push_back(k.name);
    return names;
}

double compute_speed(const std::string& kind, const std::string& isa, int num_threads, double at_least_s) {
    if (num_threads < 1) throw std::invalid_argument("computing takes at least one thread");
    Compute loop = nullptr;
    for (const Kind& k : kinds(isa))
        if (kind == k.name) loop = k.loop;
    if (!loop) throw std::invalid_argument("there is no loop for '" + kind + "' with instruction set '" + isa + "'");
    Team team(num_threads, 64);
    constexpr int64_t ROUNDS = 20000;
    std::vector<double> done(size_t(num_threads) * 8);
    double best = 0;
    const auto start = clock::now();
    do {
        const auto from = clock::now();
        team.run([&](const Ctx& ctx) { done[size_t(ctx.tid) * 8] = loop(ROUNDS); });
        const double took = seconds_since(from);
        double sum = 0;
        for (int t = 0; t < num_threads; t++) sum += done[size_t(t) * 8];
        best = std::max(best, sum / took);
    } while (seconds_since(start) < at_least_s);
    return best;
}

}  // namespace octavo
