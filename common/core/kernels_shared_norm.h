// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm's statistics over the ranks where they are summed in a GPU's memory: what
// shared_moments.h does on the host, with every count on the device, so that nobody waits for it.
// Per channel, n of them; `first` [n], `second` [n] and `count` [1] lie side by side, as one sum.
#pragma once

#include "common/core/kernels_columns.h"
#include "common/core/kernels_norm.h"

namespace paceline::kernels {

/// Channel c: this rank's mean and Σ (x − mean)² of `elements` become sums that add up over ranks;
/// without elements they become zeros.
struct MomentSums {
  double* first;
  double* second;
  double* count;
  double elements;

  PACELINE_HD void operator()(std::int64_t c) const {
    const double mean = elements > 0.0 ? first[c] : 0.0;
    const double m2 = elements > 0.0 ? second[c] : 0.0;
    first[c] = elements * mean;
    second[c] = m2 + elements * mean * mean;
    if (c == 0) {
      *count = elements;
    }
  }
};

/// Channel c: from the ranks' sums what BatchStatistics gives. With no elements anywhere nothing
/// changes.
struct SharedStatistics {
  double* first;
  double* second;
  const double* count;
  BatchStatistics statistics;  ///< of `first` and `second`; its count is not looked at

  PACELINE_HD void operator()(std::int64_t c) const {
    if (*count <= 0.0) {
      return;
    }
    const double mean = first[c] / *count;
    const double m2 = second[c] - first[c] * mean;
    first[c] = mean;
    second[c] = m2 > 0.0 ? m2 : 0.0;
    BatchStatistics all = statistics;
    all.count = *count;
    all(c);
  }
};

/// One: the elements that this rank's gradient sums are of.
struct SharedCount {
  double* count;
  double elements;

  PACELINE_HD void operator()(std::int64_t /*only*/) const { *count = elements; }
};

/// Channel c: GroupGradientMeans over all ranks' elements.
struct SharedGradientMeans {
  const double* count;
  GroupGradientMeans means;  ///< its rows are not looked at

  PACELINE_HD void operator()(std::int64_t c) const {
    if (*count <= 0.0) {
      return;
    }
    GroupGradientMeans all = means;
    all.rows = static_cast<std::int64_t>(*count);
    all(c);
  }
};

}  // namespace paceline::kernels
