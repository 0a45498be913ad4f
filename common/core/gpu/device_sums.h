// SPDX-License-Identifier: Apache-2.0
// Sums over the ranks of a job in the GPUs' own memory.
#pragma once

#include <span>

#include "common/core/gpu/gpu.h"

namespace paceline {

/// Used by the training thread. Collective, as StatisticsReducer is.
class DeviceSums {
 public:
  DeviceSums() = default;
  virtual ~DeviceSums() = default;
  DeviceSums(const DeviceSums&) = delete;
  DeviceSums& operator=(const DeviceSums&) = delete;

  /// values[i], in device memory, becomes its sum over all ranks, the same bits on each. Takes what
  /// was queued on `stream` before, and is done for what is queued there after; the host does not
  /// wait. Throws what the backend's other collectives throw.
  virtual void sum(std::span<double> values, GpuStream& stream) = 0;
};

}  // namespace paceline
