#include "memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <system_error>

namespace octavo {

namespace {
constexpr size_t HUGE_PAGE = size_t(2) << 20;
constexpr size_t CHUNK = size_t(64) << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

Memory::Memory(size_t bytes) : bytes_(bytes) {
    map_bytes_ = round_up(bytes ? bytes : 1, HUGE_PAGE) + HUGE_PAGE;
    void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    map_ = static_cast<char*>(map);
    data_ = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(map_), HUGE_PAGE));
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE) madvise(data_, round_up(bytes, HUGE_PAGE), MADV_HUGEPAGE);
#endif
}

Memory::~Memory() { munmap(map_, map_bytes_); }

std::shared_ptr<char> allocate_piece(size_t bytes) {
    static std::mutex mutex;
    static std::weak_ptr<Memory> current;
    static size_t used = 0;
    bytes = round_up(bytes ? bytes : 1, 4096);
    if (bytes > CHUNK / 4) {
        auto own = std::make_shared<Memory>(bytes);
        return std::shared_ptr<char>(own, own->data());
    }
    std::lock_guard<std::mutex> lock(mutex);
    auto chunk = current.lock();
    if (!chunk || used + bytes > chunk->bytes()) {
        chunk = std::make_shared<Memory>(CHUNK);
        current = chunk;
        used = 0;
    }
    char* piece = chunk->data() + used;
    used += bytes;
    return std::shared_ptr<char>(chunk, piece);
}

std::shared_ptr<char> map_file(int fd, size_t bytes) {
    int flags = MAP_SHARED;
#ifdef MAP_POPULATE
    flags |= MAP_POPULATE;  // all pages at once, not by faults in the first step
#endif
    void* map = mmap(nullptr, bytes, PROT_READ, flags, fd, 0);
    if (map == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    return std::shared_ptr<char>(static_cast<char*>(map), [bytes](char* p) { munmap(p, bytes); });
}

}  // namespace octavo
