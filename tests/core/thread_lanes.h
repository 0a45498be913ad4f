// SPDX-License-Identifier: Apache-2.0
// A warp of eight threads: runs functors as a GPU's lanes would, at once and striding.
#pragma once

#include <array>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/core/kernels_each.h"
#include "common/core/lane_team.h"

namespace paceline::test {

inline constexpr int kThreadLanes = 8;

/// What the lanes share: a slot each, and a barrier around its use.
struct LaneSlots {
  std::array<double, kThreadLanes> values{};  // exact for float and for the indices of a test
  std::barrier<> barrier{kThreadLanes};
};

class ThreadExchange {
 public:
  static constexpr int kLanes = kThreadLanes;
  ThreadExchange(LaneSlots& slots, int lane) : slots_(&slots), lane_(lane) {}
  [[nodiscard]] std::int64_t lane() const { return lane_; }
  template <typename T>
  [[nodiscard]] T across(T value, int mask) const {
    slots_->values[static_cast<std::size_t>(lane_)] = static_cast<double>(value);
    slots_->barrier.arrive_and_wait();
    const T other = static_cast<T>(slots_->values[static_cast<std::size_t>(lane_ ^ mask)]);
    slots_->barrier.arrive_and_wait();
    return other;
  }

 private:
  LaneSlots* slots_;
  int lane_;
};

/// Runs body(lane) on eight threads at once.
template <typename Body>
void on_lanes(const Body& body) {
  std::vector<std::jthread> lanes;
  for (int lane = 0; lane < kThreadLanes; ++lane) {
    lanes.emplace_back([&body, lane] { body(lane); });
  }
}

/// kernels::for_rows and kernels::for_column_tiles by a team of eight lanes.
template <typename F>
void for_rows_by_lanes(std::int64_t rows, const F& f) {
  LaneSlots slots;
  on_lanes([&](int lane) {
    const kernels::LaneTeam<ThreadExchange> team(ThreadExchange(slots, lane));
    for (std::int64_t row = 0; row < rows; ++row) {
      f(team, row);
    }
  });
}

/// kernels::for_each by eight lanes that stride.
template <typename F>
void for_each_by_lanes(std::int64_t n, const F& f) {
  on_lanes([&](int lane) {
    for (std::int64_t i = lane; i < n; i += kThreadLanes) {
      f(i);
    }
  });
}

/// kernels::for_each_in_packs by blocks of eight lanes at once.
template <typename F>
void for_each_in_packs_by_lanes(std::int64_t n, const F& f) {
  const kernels::PackCut cut = kernels::cut_packs(f, n);
  const std::int64_t blocks = (kernels::threads_for<F>(n, cut) + kThreadLanes - 1) / kThreadLanes;
  on_lanes([&](int lane) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      kernels::run_share(f, n, cut, {block, blocks, lane, kThreadLanes});
    }
  });
}

}  // namespace paceline::test
