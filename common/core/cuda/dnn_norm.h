// SPDX-License-Identifier: Apache-2.0
// Batch norm of training through graphs of cuDNN's (its calls for batch norm alone are deprecated,
// cannot be planned without a device, and fuse what follows in fp16 alone). In evaluation no engine
// of its computes it.
#pragma once

#include <cstddef>
#include <string>

#include "common/core/cuda/dnn_plans.h"
#include "common/core/cuda/math_abi.h"
#include "common/core/cuda/workspace.h"

namespace paceline::cuda {

/// See BatchNorm and MathApi in math_abi.h.
class DnnNorm {
 public:
  /// Both are borrowed; the handle's stream is the workspace's.
  DnnNorm(const DnnLibrary& library, cudnnHandle_t handle)
      : library_(library), handle_(handle), target_(handle) {}

  /// Empty where the norm and its gradient are computed.
  [[nodiscard]] const std::string& obstacle(const BatchNorm& shape);
  void forward(const BatchNorm& shape, const void* x, const void* addend, const float* gamma,
               const float* beta, void* y, float* mean, float* inverse, Workspace& workspace);
  void backward(const BatchNorm& shape, const void* x, const void* y, const void* dy,
                const float* gamma, const float* mean, const float* inverse, void* dx,
                float* d_gamma, float* d_beta, Workspace& workspace);

  /// Throws Failure where it is not computed on `target`.
  [[nodiscard]] static WorkspacePlan planned(const DnnLibrary& library, const DnnTarget& target,
                                             const BatchNorm& shape);

 private:
  using Plans = DnnPlans<7>;

  const DnnLibrary& library_;
  cudnnHandle_t handle_;
  DnnTarget target_;
  Plans forward_;
  Plans backward_;
};

}  // namespace paceline::cuda
