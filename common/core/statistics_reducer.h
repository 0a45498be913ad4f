// SPDX-License-Identifier: Apache-2.0
// How a layer adds its statistics over the ranks of a job, without knowing how they talk.
#pragma once

#include <span>

namespace paceline {

class DeviceSums;  // common/core/gpu/device_sums.h

/// Used by one thread. Collective: every rank makes the same calls, with spans of equal length, in
/// the same order.
class StatisticsReducer {
 public:
  StatisticsReducer() = default;
  virtual ~StatisticsReducer() = default;
  StatisticsReducer(const StatisticsReducer&) = delete;
  StatisticsReducer& operator=(const StatisticsReducer&) = delete;
  /// values[i] becomes its sum over all ranks, the same bits on each. Throws what the transport
  /// throws.
  virtual void sum(std::span<double> values) = 0;

  /// Where the job's backend sums in the GPU's memory; null: layers bring their statistics to the
  /// host, for sum(). Set by the backend's bind, and to null before it ends.
  [[nodiscard]] DeviceSums* on_device() const noexcept { return on_device_; }
  void use(DeviceSums* sums) noexcept { on_device_ = sums; }

 private:
  DeviceSums* on_device_ = nullptr;
};

}  // namespace paceline
