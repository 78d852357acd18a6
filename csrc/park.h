// Sleeping until a 32-bit word changes, without a lock on the way of whoever changes it.
#pragma once
#include <atomic>
#include <cstdint>

namespace octavo {

// Sleeps while *word == seen. May return for no reason: look again.
void park(std::atomic<uint32_t>* word, uint32_t seen);
// Wakes all that sleep on the word; called after changing it.
void unpark(std::atomic<uint32_t>* word);

}  // namespace octavo
