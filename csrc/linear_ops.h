// Adds linear and logits ops to a program.
#pragma once
#include <string>
#include <vector>

#include "linear.h"
#include "program.h"

namespace octavo {

// y = act(x W^T + bias) (+ residual). With a gate, W is interleaved and y = act(first half) * second half.
// `residual` may be the buffer of y. Throws std::invalid_argument when shapes do not fit.
void add_linear(Program& program, const std::string& name, const Buffer& x, const Buffer& y, const Weight& weight,
                const std::vector<float>& bias, const Buffer* residual, Gate gate);

// Logits of the sampling rows and of the scored rows, 64 at a time, each tile handed to the sampler. Rows of
// x are tokens (then the step's sample_tokens are gathered) or samples already.
void add_logits(Program& program, const std::string& name, const Buffer& x, const Weight& weight, float softcap);

}  // namespace octavo
