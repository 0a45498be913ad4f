// SPDX-License-Identifier: Apache-2.0
// The team of a row functor (see kernels.h) whose lanes run at once: a warp on a GPU; threads in a
// test, so that the same lane loops and collectives run where there is no GPU.
#pragma once

#include <cstdint>

#include "common/core/kernels.h"

namespace paceline::kernels {

/// Collectives as butterflies, which give the same bits on every lane. `Exchange` has kLanes (a
/// power of two), lane(), and across(value, mask): the value that lane() ^ mask passes, called by
/// all lanes together; what a lane read before is not overwritten by what another writes after.
template <typename Exchange>
class LaneTeam {
 public:
  PACELINE_HD explicit LaneTeam(const Exchange& exchange) : exchange_(exchange) {}

  [[nodiscard]] PACELINE_HD std::int64_t lane() const { return exchange_.lane(); }
  [[nodiscard]] PACELINE_HD std::int64_t size() const { return Exchange::kLanes; }

  [[nodiscard]] PACELINE_HD float sum(float value) const { return added(value); }
  [[nodiscard]] PACELINE_HD double sum(double value) const { return added(value); }
  [[nodiscard]] PACELINE_HD float max(float value) const {
    for (int mask = Exchange::kLanes / 2; mask > 0; mask /= 2) {
      const float other = exchange_.across(value, mask);
      value = other > value ? other : value;
    }
    return value;
  }
  [[nodiscard]] PACELINE_HD std::int64_t min(std::int64_t value) const {
    for (int mask = Exchange::kLanes / 2; mask > 0; mask /= 2) {
      const std::int64_t other = exchange_.across(value, mask);
      value = other < value ? other : value;
    }
    return value;
  }

 private:
  template <typename T>
  [[nodiscard]] PACELINE_HD T added(T value) const {
    for (int mask = Exchange::kLanes / 2; mask > 0; mask /= 2) {
      value += exchange_.across(value, mask);
    }
    return value;
  }

  Exchange exchange_;
};

}  // namespace paceline::kernels
