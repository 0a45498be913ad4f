// SPDX-License-Identifier: Apache-2.0
// The module's NCCL, defined in nccl.cu; see nccl_abi.h.
#pragma once

#include "common/core/cuda/nccl_abi.h"

namespace paceline::cuda {

extern const NcclApi kNcclApi;

}  // namespace paceline::cuda
