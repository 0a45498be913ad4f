// SPDX-License-Identifier: Apache-2.0
// Statistics of a layer, added over the workers of a job.
#pragma once

#include <algorithm>

#include "common/comm/communicator.h"
#include "common/core/statistics_reducer.h"

namespace paceline {

/// The communicator outlives it and is used by the same thread.
class CommunicatorReducer final : public StatisticsReducer {
 public:
  explicit CommunicatorReducer(Communicator& workers) : workers_(workers) {}
  void sum(std::span<double> values) override {
    std::ranges::copy(workers_.sum(values), values.begin());
  }

 private:
  Communicator& workers_;
};

}  // namespace paceline
