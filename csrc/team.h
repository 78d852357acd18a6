// The thread team: n threads including the caller. Knows nothing of ops.
//
// Between the ops of a step the threads spin (measured: a sleeping wait costs more than it gives,
// even beside a busy process); between steps they sleep on a condition variable.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "op.h"

namespace octavo {

class Team {
public:
    // scratch_bytes: private memory of each thread, 64-byte aligned.
    Team(int n, size_t scratch_bytes);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Runs job(ctx) on every thread and returns when all are done. Not reentrant. Throws
    // std::runtime_error in a child process after fork(), where the threads do not exist.
    void run(const std::function<void(const Ctx&)>& job);

    // Meets all threads of the running job. Every thread must call it equally often.
    void barrier(int tid);

    int size() const { return n_; }

private:
    void loop(int tid);
    void sleep_until_job(uint64_t seen);

    int n_;
    int pid_;
    size_t scratch_bytes_;
    std::vector<char*> scratch_;
    std::vector<std::thread> threads_;
    const std::function<void(const Ctx&)>* job_ = nullptr;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stop_ = false;
    alignas(64) std::atomic<uint64_t> epoch_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
};

}  // namespace octavo
