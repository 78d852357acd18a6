#include "team.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {

namespace {
void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}
// How long a worker spins for the next step before it sleeps: about the gap between two steps of a busy
// engine. Waking a sleeper costs up to 50 microseconds; spinning longer takes a core from other processes.
constexpr auto SPIN_BEFORE_SLEEP = std::chrono::microseconds(100);
// A barrier that lasts this long means that a thread lost its core: let others run.
constexpr int SPINS_BEFORE_YIELD = 20000;
}  // namespace

void Ctx::barrier() const {
    if (team) team->barrier(tid);
}

Team::Team(int n, size_t scratch_bytes) : n_(n), pid_(getpid()), scratch_bytes_((scratch_bytes + 63) / 64 * 64) {
    if (n < 1) throw std::invalid_argument("a thread team needs at least one thread");
    for (int t = 0; t < n; t++) {
        void* p = std::aligned_alloc(64, scratch_bytes_ ? scratch_bytes_ : 64);
        if (!p) throw std::bad_alloc();
        scratch_.push_back(static_cast<char*>(p));
    }
    for (int t = 1; t < n; t++) threads_.emplace_back([this, t] { loop(t); });
}

Team::~Team() {
    if (getpid() == pid_) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        epoch_.fetch_add(1);
        wake_.notify_all();
        for (auto& t : threads_) t.join();
    } else {
        // In a forked child the threads never existed: their handles must not be joined.
        for (auto& t : threads_) t.detach();
    }
    for (char* p : scratch_) std::free(p);
}

void Team::sleep_until_job(uint64_t seen) {
    const auto end = std::chrono::steady_clock::now() + SPIN_BEFORE_SLEEP;
    for (int i = 1; i % 64 || std::chrono::steady_clock::now() < end; i++) {
        if (epoch_.load(std::memory_order_acquire) != seen) return;
        pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return epoch_.load() != seen; });
    sleepers_.fetch_sub(1);
}

void Team::loop(int tid) {
    uint64_t seen = 0;
    for (;;) {
        sleep_until_job(seen);
        seen++;
        if (stop_) return;
        Ctx ctx;
        ctx.tid = tid, ctx.n = n_, ctx.team = this;
        ctx.scratch = scratch_[tid], ctx.scratch_bytes = scratch_bytes_;
        (*job_)(ctx);
        barrier(tid);  // the caller may not reuse the job before all have left it
    }
}

void Team::run(const std::function<void(const Ctx&)>& job) {
    if (getpid() != pid_) throw std::runtime_error("a thread team cannot be used in a forked process");
    job_ = &job;
    epoch_.fetch_add(1);
    if (sleepers_.load() > 0) {
        // The lock makes sure that a worker between its last look and its wait is not missed.
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    Ctx ctx;
    ctx.tid = 0, ctx.n = n_, ctx.team = this;
    ctx.scratch = scratch_[0], ctx.scratch_bytes = scratch_bytes_;
    job(ctx);
    barrier(0);
}

void Team::barrier(int) {
    if (n_ == 1) return;
    uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
        if (spins < SPINS_BEFORE_YIELD) pause();
        else std::this_thread::yield();
    }
}

}  // namespace octavo
