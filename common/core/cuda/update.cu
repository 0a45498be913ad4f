// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of a·b+c, as the CPU's optimizer is (see optimizer_rules.h).
#include "common/core/cuda/launch.cuh"
#include "common/core/cuda/launches.h"
#include "common/core/optimizer_rules.h"
#include "common/core/optimizer_tensors.h"

namespace paceline::cuda {

int update(const OptimizerSpec* spec, const UpdateInfo* info,
           const kernels::UpdateOperands* operands, std::int64_t count, void* stream) {
  int status = kSuccess;
  if (operands->tensors.pieces != nullptr) {
    kernels::with_guarded_tensor_rule(
        *operands, *spec, *info, [&](const auto& rule) { status = for_rows(count, rule, stream); });
    return status;
  }
  kernels::with_guarded_update_rule(
      *operands, *spec, *info, [&](const auto& rule) { status = for_each(count, rule, stream); });
  return status;
}

}  // namespace paceline::cuda
