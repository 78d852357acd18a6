// Memory maps: anonymous ones with huge pages where the system gives them, and files to read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace octavo {

class Memory {
public:
    explicit Memory(size_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    char* map_;
    size_t map_bytes_;
    char* data_;
    size_t bytes_;
};

// A zeroed piece of a large shared map (weights of all sizes get huge pages), 4096-byte aligned. The map goes
// when the last of its pieces does.
std::shared_ptr<char> allocate_piece(size_t bytes);

// The first `bytes` of an open file, to read, shared with whoever maps it too; `fd` may be closed afterwards. Throws
// std::system_error.
std::shared_ptr<char> map_file(int fd, size_t bytes);

}  // namespace octavo
