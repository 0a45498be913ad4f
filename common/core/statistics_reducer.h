// SPDX-License-Identifier: Apache-2.0
// How a layer adds its statistics over the ranks of a job, without knowing how they talk.
#pragma once

#include <span>

namespace paceline {

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
};

}  // namespace paceline
