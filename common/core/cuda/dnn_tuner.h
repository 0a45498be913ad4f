// SPDX-License-Identifier: Apache-2.0
// Which of several plans for a graph is the fastest, by running them.
#pragma once

#include <cstddef>
#include <span>

#include "common/core/cuda/dnn_graph.h"

namespace paceline::cuda {

class DnnTuner {
 public:
  /// The handle is borrowed.
  explicit DnnTuner(const DnnHandle& handle) : handle_(handle) {}

  /// The index of the fastest; 0 where nothing can be timed: while a graph is recorded, when no
  /// plan runs, and from then on that the GPU was waited for in vain. The host waits for the
  /// handle's stream; tensors that the graph fills hold what one of the plans computed.
  [[nodiscard]] std::size_t fastest(std::span<const DnnPlan> plans,
                                    std::span<const DnnBinding> bindings);

 private:
  class Timer;

  const DnnHandle& handle_;
  bool gave_up_ = false;
};

}  // namespace paceline::cuda
