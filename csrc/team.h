// The thread team: n threads including the caller. Knows nothing of ops.
//
// Between the ops of a step the threads meet at a barrier. They spin there for about as long as threads on free
// cores may be apart, and then sleep, so that a thread which lost its core to another process does not make the
// others burn theirs. After such a delay they spin only briefly for a while. Between steps they spin a little too,
// and sleep. An adaptive team also uses fewer threads where that gets more done (team_size.h).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "op.h"
#include "team_size.h"

namespace octavo {

// What the threads waited for each other, since the team began or since reset_waits().
struct Waits {
    int64_t steps = 0, wall_ns = 0;
    int64_t thread_ns = 0;  // sum over steps of time x threads
    int64_t wait_ns = 0;    // of it, at barriers
    int64_t sleeps = 0;     // waits that ended in sleep
    int64_t late = 0;       // waits so long that a thread must have lost its core
    int threads = 0;        // in use now
    int64_t resizes = 0;
};

class Team {
public:
    static constexpr int MOST = 1024;

    // scratch_bytes: private memory of each thread, 64-byte aligned.
    Team(int n, size_t scratch_bytes, bool adaptive = false);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Runs job(ctx) on every thread in use and returns when all are done. Not reentrant. Throws
    // std::runtime_error in a child process after fork(), where the threads do not exist.
    void run(const std::function<void(const Ctx&)>& job);

    // Meets all threads of the running job. Every thread must call it equally often.
    void barrier(int tid);

    int size() const { return n_; }
    Waits waits() const;
    void reset_waits();

private:
    struct alignas(64) Member {
        char* scratch = nullptr;
        int64_t wait_ns = 0, spun_ns = 0, sleeps = 0, late = 0;  // spun: of the waiting, what cost CPU time
        int64_t work_ns = 0;                                     // of the last job
        int brief = 0;                                           // barriers to come at which it spins briefly
    };

    void loop(int tid);
    uint32_t next_job(int tid, uint32_t seen);
    void take_part(int tid, int threads);
    void wait(Member& me, uint32_t phase);
    void publish(int threads);

    int n_;
    int pid_;
    size_t scratch_bytes_;
    bool adaptive_;
    std::vector<Member> members_;
    std::vector<std::thread> threads_;
    TeamSize team_size_;
    const std::function<void(const Ctx&)>* job_ = nullptr;
    int in_use_;
    int64_t steps_ = 0, wall_ns_ = 0, thread_ns_ = 0;
    std::atomic<bool> stop_{false};
    // The number of the job, and below it the threads that do it: one word, so that no thread sees one without
    // the other.
    alignas(64) std::atomic<uint32_t> ticket_{0};
    alignas(64) std::atomic<uint32_t> grown_{0};  // changes when threads are wanted that were left out before
    alignas(64) std::atomic<int> sleepers_{0};    // that wait for a ticket
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    alignas(64) std::atomic<int> parked_{0};      // that wait for a phase
};

}  // namespace octavo
