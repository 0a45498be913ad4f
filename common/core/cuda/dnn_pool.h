// SPDX-License-Identifier: Apache-2.0
// Pooling through cuDNN's resampling. A maximum's gradient goes by its place in the window, so that
// equal calls give equal bits and inputs need not be kept.
#pragma once

#include <string>

#include "common/core/cuda/dnn_plans.h"
#include "common/core/cuda/math_abi.h"
#include "common/core/cuda/workspace.h"

namespace paceline::cuda {

/// See Pool and MathApi in math_abi.h.
class DnnPool {
 public:
  /// Both are borrowed; the handle's stream is the workspace's.
  DnnPool(const DnnLibrary& library, cudnnHandle_t handle)
      : library_(library), handle_(handle), target_(handle) {}

  /// Empty where pooling and its gradient are computed.
  [[nodiscard]] const std::string& obstacle(const Pool& shape);
  void forward(const Pool& shape, const void* x, void* y, std::uint8_t* winners,
               Workspace& workspace);
  void backward(const Pool& shape, const void* dy, const std::uint8_t* winners, void* dx,
                Workspace& workspace);

  /// Throws Failure where it is not computed on `target`.
  [[nodiscard]] static WorkspacePlan planned(const DnnLibrary& library, const DnnTarget& target,
                                             const Pool& shape);

 private:
  using Plans = DnnPlans<12>;

  const DnnLibrary& library_;
  cudnnHandle_t handle_;
  DnnTarget target_;
  Plans forward_;
  Plans backward_;
};

}  // namespace paceline::cuda
