#include "team.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "park.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {

namespace {

constexpr uint32_t THREADS_MASK = 2047, NEXT_JOB = 2048;  // of a ticket
static_assert(Team::MOST <= int(THREADS_MASK));

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
int64_t cpu_ns() {  // of this thread
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// How long a worker spins for the next step before it sleeps: about the gap between two steps of a busy
// engine. Waking a sleeper costs up to 50 microseconds; spinning longer takes a core from other processes.
constexpr int64_t JOB_SPIN_NS = 100'000;
// The same at a barrier. Threads on free cores are seldom further apart in a short op; in a long one sleep is cheap.
constexpr int64_t SPIN_NS = 200'000;
// After a delay: others want the cores, and get them sooner.
constexpr int64_t BRIEF_SPIN_NS = 20'000;
constexpr int BRIEF_BARRIERS = 512;
// A wait so long means that a thread lost its core (or that an op is long: then brief spinning costs nothing).
constexpr int64_t LATE_NS = 1'000'000;
// Not timed: a wait that ends within so many looks.
constexpr int SHORT_SPINS = 32;

}  // namespace

void Ctx::barrier() const {
    if (team) team->barrier(tid);
}

Team::Team(int n, size_t scratch_bytes, bool adaptive)
    : n_(n), pid_(getpid()), scratch_bytes_((scratch_bytes + 63) / 64 * 64), adaptive_(adaptive), team_size_(n), in_use_(n) {
    if (n < 1 || n > MOST) throw std::invalid_argument("a thread team has 1 to 1024 threads");
    members_ = std::vector<Member>(size_t(n));
    for (Member& m : members_) {
        m.scratch = static_cast<char*>(std::aligned_alloc(64, scratch_bytes_ ? scratch_bytes_ : 64));
        if (!m.scratch) throw std::bad_alloc();
    }
    for (int t = 1; t < n; t++) threads_.emplace_back([this, t] { loop(t); });
}

Team::~Team() {
    if (getpid() == pid_) {
        stop_ = true;
        ticket_.fetch_add(NEXT_JOB);
        grown_.fetch_add(1);
        unpark(&ticket_);
        unpark(&grown_);
        for (auto& t : threads_) t.join();
    } else {
        // In a forked child the threads never existed: their handles must not be joined.
        for (auto& t : threads_) t.detach();
    }
    for (Member& m : members_) std::free(m.scratch);
}

// Returns a ticket other than `seen` that thread `tid` belongs to, or any when the team ends.
uint32_t Team::next_job(int tid, uint32_t seen) {
    const auto mine = [&](uint32_t t) { return t != seen && tid < int(t & THREADS_MASK); };
    for (;;) {
        const uint32_t grown = grown_.load();
        uint32_t ticket = ticket_.load();
        if (stop_ || mine(ticket)) return ticket;
        if (ticket && tid >= int(ticket & THREADS_MASK)) {  // left out: sleep until the team grows
            park(&grown_, grown);
            continue;
        }
        const int64_t end = now_ns() + JOB_SPIN_NS;
        for (int i = 1; i % 64 || now_ns() < end; i++) {
            ticket = ticket_.load(std::memory_order_acquire);
            if (ticket != seen) break;
            pause();
        }
        if (ticket != seen) continue;
        sleepers_.fetch_add(1);
        if (!stop_) park(&ticket_, seen);
        sleepers_.fetch_sub(1);
    }
}

void Team::take_part(int tid, int threads) {
    Member& me = members_[size_t(tid)];
    const int64_t cpu = adaptive_ ? cpu_ns() : 0, spun = me.spun_ns;
    Ctx ctx;
    ctx.tid = tid, ctx.n = threads, ctx.team = this;
    ctx.scratch = me.scratch, ctx.scratch_bytes = scratch_bytes_;
    (*job_)(ctx);
    if (adaptive_) me.work_ns = cpu_ns() - cpu - (me.spun_ns - spun);
    barrier(tid);  // the caller may not reuse the job, nor read what it cost, before all have left it
}

void Team::loop(int tid) {
    for (uint32_t seen = 0;;) {
        seen = next_job(tid, seen);
        if (stop_) return;
        take_part(tid, int(seen & THREADS_MASK));
    }
}

void Team::publish(int threads) {
    const int before = in_use_;
    in_use_ = threads;
    const uint32_t ticket = (ticket_.load() & ~THREADS_MASK) + NEXT_JOB;
    ticket_.store(ticket | uint32_t(threads));
    // A sleeper counts itself before it looks at the ticket for the last time, so none is missed.
    if (sleepers_.load() > 0) unpark(&ticket_);
    if (threads > before) {
        grown_.fetch_add(1);
        unpark(&grown_);
    }
}

void Team::run(const std::function<void(const Ctx&)>& job) {
    if (getpid() != pid_) throw std::runtime_error("a thread team cannot be used in a forked process");
    const int threads = adaptive_ ? team_size_.now() : n_;
    const int64_t start = now_ns();
    job_ = &job;
    if (n_ > 1) publish(threads);
    take_part(0, threads);
    const int64_t wall = now_ns() - start;
    steps_++;
    wall_ns_ += wall;
    thread_ns_ += wall * threads;
    if (!adaptive_) return;
    int64_t work = 0;
    for (int t = 0; t < threads; t++) work += members_[size_t(t)].work_ns;
    team_size_.saw(wall, work);
}

void Team::barrier(int tid) {
    const int threads = in_use_;
    if (threads == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.fetch_add(1);
        if (parked_.load() > 0) unpark(&phase_);
        return;
    }
    for (int spins = 0; spins < SHORT_SPINS; spins++) {
        if (phase_.load(std::memory_order_acquire) != phase) return;
        pause();
    }
    wait(members_[size_t(tid)], phase);
}

void Team::wait(Member& me, uint32_t phase) {
    const int64_t start = now_ns(), spin = me.brief > 0 ? BRIEF_SPIN_NS : SPIN_NS;
    if (me.brief > 0) me.brief--;
    int64_t now = start;
    bool over = false;
    for (int i = 1; !over && now - start < spin; i++) {
        over = phase_.load(std::memory_order_acquire) != phase;
        pause();
        if (i % 16 == 0 || over) now = now_ns();
    }
    me.spun_ns += std::min(now - start, spin);
    if (!over) {
        me.sleeps++;
        parked_.fetch_add(1);
        while (phase_.load() == phase) park(&phase_, phase);
        parked_.fetch_sub(1);
        now = now_ns();
    }
    me.wait_ns += now - start;
    if (now - start < LATE_NS) return;
    me.late++;
    me.brief = BRIEF_BARRIERS;
}

Waits Team::waits() const {
    Waits w;
    w.steps = steps_, w.wall_ns = wall_ns_, w.thread_ns = thread_ns_;
    for (const Member& m : members_) w.wait_ns += m.wait_ns, w.sleeps += m.sleeps, w.late += m.late;
    w.threads = adaptive_ ? team_size_.now() : n_;
    w.resizes = team_size_.changes();
    return w;
}

void Team::reset_waits() {
    steps_ = wall_ns_ = thread_ns_ = 0;
    for (Member& m : members_) m.wait_ns = m.sleeps = m.late = 0;
}

}  // namespace octavo
