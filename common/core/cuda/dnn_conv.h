// SPDX-License-Identifier: Apache-2.0
// Convolutions and their gradients through graphs of cuDNN's.
#pragma once

#include <cstdint>

#include "common/core/cuda/dnn_plans.h"
#include "common/core/cuda/dnn_tuner.h"

namespace paceline::cuda {

/// See Convolution and MathApi in math_abi.h. Everything throws Failure.
class DnnConv {
 public:
  /// The handle is borrowed, its stream is that of the workspaces given. With `tune` the fastest of
  /// cuDNN's proposals computes a shape, else the first.
  DnnConv(const DnnHandle& handle, bool tf32, bool tune);

  void forward(const Convolution& shape, const void* x, const void* filter, void* y,
               Workspace& workspace);
  void input_gradient(const Convolution& shape, const void* dy, const void* filter, void* dx,
                      Workspace& workspace);
  void filter_gradient(const Convolution& shape, const void* x, const void* dy, void* d_filter,
                       Workspace& workspace);

  /// Without a device to tune on.
  [[nodiscard]] static WorkspacePlan planned(const DnnLibrary& library, const DnnTarget& target,
                                             const Convolution& shape, bool tf32);

 private:
  enum class Direction : std::uint8_t { forward, data, filter };
  /// A direction of a shape, and what else its plan goes by.
  struct Pass {
    const Convolution& shape;
    Direction direction;
    std::int64_t alignment;  ///< bytes, of every tensor
    bool tf32;
  };
  using Plans = DnnPlans<11>;

  [[nodiscard]] static Plans::Key key_of(const Pass& pass);
  /// The first `most` that give equal bits and sum in fp32.
  [[nodiscard]] static std::vector<DnnPlan> offers(const DnnLibrary& library,
                                                   const DnnTarget& target, const Pass& pass,
                                                   std::size_t most);
  void run(const Convolution& shape, Direction direction, const void* x, const void* filter,
           const void* y, Workspace& workspace);

  const DnnHandle& handle_;
  bool tf32_;
  bool tune_;
  DnnTarget target_;
  DnnTuner tuner_;
  Plans plans_;
};

}  // namespace paceline::cuda
