// SPDX-License-Identifier: Apache-2.0
// The module's launches, defined in each_kernels.cu, row_kernels.cu and update.cu; see abi.h.
#pragma once

#include "common/core/cuda/abi.h"

namespace paceline::cuda {

int each(int functor_id, const void* functor, std::int64_t n, void* stream);
int rows(int functor_id, const void* functor, std::int64_t count, void* stream);
int update(const OptimizerSpec* spec, const UpdateInfo* info,
           const kernels::UpdateOperands* operands, std::int64_t count, void* stream);

}  // namespace paceline::cuda
