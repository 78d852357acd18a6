// What ops share beside kernels: rope tables, attention's space, the counter-based random numbers.
#include "ops.h"

#include <cmath>
#include <cstdlib>
#include <new>

namespace octavo {

namespace {

char* aligned(size_t bytes) {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) throw std::bad_alloc();
    return static_cast<char*>(p);
}

}  // namespace

RopeTable::RopeTable(const double* inv_freq, int pairs, double attention_factor, int max_positions)
    : pairs_(pairs), max_positions_(max_positions), attention_factor_(attention_factor), inv_freq_(new double[pairs]) {
    for (int i = 0; i < pairs; ++i) inv_freq_[i] = inv_freq[i];
    const int pages = (max_positions + PAGE - 1) / PAGE;
    pages_ = new std::atomic<float*>[pages];
    for (int i = 0; i < pages; ++i) pages_[i].store(nullptr, std::memory_order_relaxed);
}

RopeTable::~RopeTable() {
    for (int i = 0; i < (max_positions_ + PAGE - 1) / PAGE; ++i) std::free(pages_[i].load());
    delete[] pages_;
    delete[] inv_freq_;
}

const float* RopeTable::fill(int page) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (float* ready = pages_[page].load(std::memory_order_acquire)) return ready;
    auto* table = reinterpret_cast<float*>(aligned(size_t(PAGE) * 2 * pairs_ * 4));
    for (int p = 0; p < PAGE; ++p) {
        float* row = table + int64_t(p) * 2 * pairs_;
        for (int i = 0; i < pairs_; ++i) {
            const double angle = (double(page) * PAGE + p) * inv_freq_[i];
            row[i] = float(std::cos(angle) * attention_factor_);
            row[pairs_ + i] = float(std::sin(angle) * attention_factor_);
        }
    }
    pages_[page].store(table, std::memory_order_release);
    return table;
}

AttendSpace::~AttendSpace() {
    for (Part& part : parts_) std::free(part.data);
    for (Part& part : party_parts_) std::free(part.data);
}

char* AttendSpace::grown(Part& part, size_t bytes) {
    if (part.bytes < bytes) {
        std::free(part.data);
        part.data = nullptr;
        part.bytes = 0;
        part.data = aligned(bytes + bytes / 2);
        part.bytes = bytes + bytes / 2;
    }
    return part.data;
}

// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC11), section 3.3.
double philox_uniform(uint64_t seed, uint64_t position) {
    uint32_t c[4] = {uint32_t(position), uint32_t(position >> 32), 0, 0};
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
        const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
        for (int i = 0; i < 4; ++i) c[i] = next[i];
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    const uint64_t bits = uint64_t(c[0]) << 32 | c[1];
    return double(bits >> 11) * 0x1p-53;
}

}  // namespace octavo
