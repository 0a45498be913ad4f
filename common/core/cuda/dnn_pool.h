// SPDX-License-Identifier: Apache-2.0
// Pooling through cuDNN's resampling. A maximum's gradient goes by its place in the window, so that
// equal calls give equal bits and inputs need not be kept.
#pragma once

#include "common/core/cuda/dnn_plans.h"

namespace paceline::cuda {

struct PoolGraphs {
  using Key = DnnPlans<12>::Key;
  static Key forward_key(const Pool& shape);
  static Key backward_key(const Pool& shape);
  static DnnPlan forward(const DnnLibrary& library, const DnnTarget& target, const Pool& shape);
  static DnnPlan backward(const DnnLibrary& library, const DnnTarget& target, const Pool& shape);
};

/// See Pool and MathApi in math_abi.h.
class DnnPool : public DnnLayer<Pool, 12, PoolGraphs> {
 public:
  using DnnLayer::DnnLayer;

  void forward(const Pool& shape, const void* x, void* y, std::uint8_t* winners,
               Workspace& workspace);
  void backward(const Pool& shape, const void* dy, const std::uint8_t* winners, void* dx,
                Workspace& workspace);
};

}  // namespace paceline::cuda
