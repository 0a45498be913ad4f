// SPDX-License-Identifier: Apache-2.0
// The module's NCCL, defined in nccl.cu; see nccl_abi.h.
#pragma once

#include "common/core/cuda/nccl_abi.h"

namespace paceline::cuda {

extern const NcclApi kNcclApi;

/// Words for an ncclResult_t, null for one that is not known.
[[nodiscard]] const char* nccl_result_text(int result) noexcept;

}  // namespace paceline::cuda
