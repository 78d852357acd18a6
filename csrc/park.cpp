#include "park.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#else
#include <chrono>
#include <thread>
#endif

namespace octavo {

#if defined(__linux__)

void park(std::atomic<uint32_t>* word, uint32_t seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void unpark(std::atomic<uint32_t>* word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#else  // no portable way to wait for a word: short naps

void park(std::atomic<uint32_t>* word, uint32_t seen) {
    if (word->load() == seen) std::this_thread::sleep_for(std::chrono::microseconds(20));
}
void unpark(std::atomic<uint32_t>*) {}

#endif

}  // namespace octavo
