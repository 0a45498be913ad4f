// SPDX-License-Identifier: Apache-2.0
// Attention in cuDNN's fused kernels: flash attention, Dao et al. 2022 (arXiv 2205.14135).
#pragma once

#include <string>

#include "common/core/cuda/dnn_plans.h"
#include "common/core/cuda/math_abi.h"
#include "common/core/cuda/workspace.h"

namespace paceline::cuda {

/// See Attention and MathApi in math_abi.h.
class DnnAttention {
 public:
  /// Both are borrowed; the handle's stream is the workspace's.
  DnnAttention(const DnnLibrary& library, cudnnHandle_t handle);

  /// Empty where attention of this shape, for `training` with its gradient, is fused.
  [[nodiscard]] const std::string& obstacle(const Attention& shape, bool training);
  void forward(const Attention& shape, const void* qkv, void* out, float* statistics,
               Workspace& workspace);
  void backward(const Attention& shape, const void* qkv, const void* out, const float* statistics,
                const void* d_out, void* d_qkv, Workspace& workspace);

  /// Throws Failure where it is not fused on `target`.
  [[nodiscard]] static WorkspacePlan planned(const DnnLibrary& library, const DnnTarget& target,
                                             const Attention& shape);

 private:
  using Plans = DnnPlans<8>;
  [[nodiscard]] static Plans::Key key_of(const Attention& shape, bool gradient);
  [[nodiscard]] DnnPlan make_plan(const Attention& shape, bool gradient) const;
  const DnnPlan& plan_for(const Attention& shape, bool gradient);

  const DnnLibrary& library_;
  cudnnHandle_t handle_;
  DnnTarget target_;
  Plans plans_;
};

}  // namespace paceline::cuda
