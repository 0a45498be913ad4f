// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm's statistics over the ranks.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "common/core/statistics_reducer.h"

namespace paceline {

/// Collective: turns this rank's mean and Σ (x − mean)² of each channel, over `count` elements,
/// into those of all ranks' elements, and returns the number of these. Plain sums add up over
/// ranks, whatever each one's count; in fp64 the difference of squares costs nothing that fp32
/// would show. With no elements anywhere the moments stay as they are.
inline double share_moments(StatisticsReducer& reducer, double count, std::span<double> mean,
                            std::span<double> m2) {
  const std::size_t n = mean.size();
  std::vector<double> sums(2 * n + 1);
  for (std::size_t c = 0; c < n; ++c) {
    sums[c] = count * mean[c];
    sums[n + c] = m2[c] + count * mean[c] * mean[c];
  }
  sums[2 * n] = count;
  reducer.sum(sums);
  const double all = sums[2 * n];
  for (std::size_t c = 0; c < n && all > 0.0; ++c) {
    mean[c] = sums[c] / all;
    m2[c] = std::max(0.0, sums[n + c] - sums[c] * mean[c]);
  }
  return all;
}

}  // namespace paceline
