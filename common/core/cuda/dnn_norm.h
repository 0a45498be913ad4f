// SPDX-License-Identifier: Apache-2.0
// Batch norm of training through graphs of cuDNN's (its calls for batch norm alone are deprecated,
// cannot be planned without a device, and fuse what follows in fp16 alone). In evaluation no engine
// of its computes it. It compiles each shape at run time (NVRTC, 0.3 to 0.7 s of the host a graph);
// for dynamic shapes, which its kernel cache could keep, it has no engine (cuDNN 9.19).
#pragma once

#include "common/core/cuda/dnn_plans.h"

namespace paceline::cuda {

struct NormGraphs {
  using Key = DnnPlans<7>::Key;
  static Key forward_key(const BatchNorm& shape);
  static Key backward_key(const BatchNorm& shape);
  static DnnPlan forward(const DnnLibrary& library, const DnnTarget& target,
                         const BatchNorm& shape);
  static DnnPlan backward(const DnnLibrary& library, const DnnTarget& target,
                          const BatchNorm& shape);
};

/// See BatchNorm and MathApi in math_abi.h.
class DnnNorm : public DnnLayer<BatchNorm, 7, NormGraphs> {
 public:
  using DnnLayer::DnnLayer;

  void forward(const BatchNorm& shape, const void* x, const void* addend, const float* gamma,
               const float* beta, void* y, float* mean, float* inverse, Workspace& workspace);
  void backward(const BatchNorm& shape, const void* x, const void* y, const void* dy,
                const float* gamma, const float* mean, const float* inverse, void* dx,
                float* d_gamma, float* d_beta, Workspace& workspace);
};

}  // namespace paceline::cuda
