// How the tile unit of Intel's CPUs (AMX) is configured. Included by the files of set avx512_amx only.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "isa.h"

namespace octavo::OCTAVO_ISA {
namespace {

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

inline void load_config(const TileConfig& c) {
    asm volatile("" : : "r"(&c) : "memory");  // the intrinsic does not say that it reads all of it
    _tile_loadconfig(&c);
}

// Configured while it lives. Released at the end, so that the kernel has no tiles to save when threads switch.
class Tiles {
  public:
    explicit Tiles(const TileConfig& c) { load_config(c); }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

}  // namespace
}  // namespace octavo::OCTAVO_ISA
