// SPDX-License-Identifier: Apache-2.0
// The module's NCCL, defined in nccl.cu; see nccl_abi.h.
#pragma once

#include "common/core/cuda/nccl_abi.h"

namespace paceline::cuda {

extern const NcclApi kNcclApi;

/// NCCL's words for an ncclResult_t; null before it was opened.
[[nodiscard]] const char* nccl_result_text(int result) noexcept;

}  // namespace paceline::cuda
