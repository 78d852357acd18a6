// What the machine can do at most, measured: for benchmarks and for the anatomy of a step.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace octavo {

// Bytes per second that `num_threads` threads read together from a piece of `bytes`, again and again: the best pass.
double read_speed(size_t bytes, int num_threads, double at_least_s);

// Kinds of arithmetic that can be measured for an instruction set: "f32", "bf16", "int8", and "bf16 tile" and
// "int8 tile" where the CPU has a tile unit.
std::vector<std::string> compute_kinds(const std::string& isa);

// Operations per second (a multiply-add is two) of all threads: the best pass.
double compute_speed(const std::string& kind, const std::string& isa, int num_threads, double at_least_s);

}  // namespace octavo
