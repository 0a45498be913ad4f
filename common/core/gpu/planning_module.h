// SPDX-License-Identifier: Apache-2.0
// A module of CUDA that plans and computes nothing, where there is no GPU to ask.
#pragma once

#include "common/core/cuda_module.h"

namespace paceline {

/// One device that a Gpu and its models can be made on, to ask a model what it would hold
/// (Model::plan_activations). Memory is an address that nothing may be read from or written to, so
/// it costs nothing; whatever would copy, compute or make a stream wait throws Error. Attention is
/// fused with Fusing::always only: what else the GPU's library can fuse is known there alone.
[[nodiscard]] const CudaModule& planning_module();

}  // namespace paceline
