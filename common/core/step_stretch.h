// SPDX-License-Identifier: Apache-2.0
// How much longer than its own time a rank takes for a step, on purpose.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/config/config.h"
#include "common/config/load_imbalance.h"

namespace paceline {

/// Plain data; the same numbers for the same (seed, rank, step), whatever runs and in what order.
class StepStretch {
 public:
  /// Never stretches.
  StepStretch() = default;
  /// As fault.slow_rank, fault.jitter and seed of `config` say. Throws ConfigError.
  StepStretch(const Config& config, int rank);

  /// From 1 to kMostStretch: the rank's factor times 1 + jitter.
  [[nodiscard]] double factor(std::int64_t step) const noexcept;

 private:
  double slow_ = 1.0;
  Jitter jitter_;
  std::uint64_t key_ = 0;
};

}  // namespace paceline
