// SPDX-License-Identifier: Apache-2.0
// The batch norms and pools of host_module.h's cuDNN: the equations of math_abi.h as plain loops,
// in double.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/core/cuda/math_abi.h"

namespace paceline::test {

/// As cuDNN's planner answers for them (cuda_layers_test.cpp asks it), so that both ways are
/// tested: a norm's channels fill 16 bytes, an addend comes with a ReLU. Null: computed.
[[nodiscard]] const char* host_norm_obstacle(const cuda::BatchNorm& shape);

void host_normalise(const cuda::BatchNorm& shape, const void* x, const void* addend,
                    const float* gamma, const float* beta, void* y, float* mean, float* inverse);
void host_normalise_gradient(const cuda::BatchNorm& shape, const void* x, const void* y,
                             const void* dy, const float* gamma, const float* mean,
                             const float* inverse, void* dx, float* d_gamma, float* d_beta);
void host_pool(const cuda::Pool& shape, const void* x, void* y, std::uint8_t* winners);
void host_pool_gradient(const cuda::Pool& shape, const void* dy, const std::uint8_t* winners,
                        void* dx);

/// How many of the four above were computed so far.
[[nodiscard]] std::atomic<std::int64_t>& host_layer_calls();

}  // namespace paceline::test
