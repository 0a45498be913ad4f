// SPDX-License-Identifier: Apache-2.0
// A double of the CUDA module that computes on the host: device memory is host memory, kernels are
// the functors' own loops, products, convolutions and what else is cuDNN's plain loops in double,
// streams are threads (host_stream.h). It shows that the program asks for the right work in the
// right order; what it computes is no GPU's result.
#pragma once

#include <cstddef>

#include "common/core/cuda/abi.h"

namespace paceline::test {

/// The tables of a machine with eight devices.
[[nodiscard]] const cuda::Api& host_module();

/// Device memory that is allocated now; allocations beyond the limit fail with kOutOfMemory.
[[nodiscard]] std::size_t host_module_bytes();
void limit_host_module(std::size_t bytes);

/// Frees what a stuck Gpu left in place; no other may hold memory.
void free_host_module();

/// From now on attention of that many samples is not fused, nor is a pool of as many computed by
/// the double's cuDNN; 0: of any.
void refuse_host_samples(std::int64_t samples);

}  // namespace paceline::test
