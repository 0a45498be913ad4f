// SPDX-License-Identifier: Apache-2.0
// The emulated device: pads every layer to its share of a given step time, so that gradients become
// ready when they would on that device, and few cores can host many ranks that mostly wait. A
// straggler takes a factor of that time, or of its own where no device is emulated.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/time.h"
#include "common/core/model.h"

namespace paceline {

/// A virtual device clock that never runs ahead of real time at a layer's end and never slows down
/// to make up for a late host: a late layer is caught up by the next ones. Used by one thread.
class DevicePace {
 public:
  /// `emulate`: forward and backward of one step, shared out by FLOPs (backward twice forward);
  /// zero: no pacing.
  DevicePace(const Model& model, Nanoseconds emulate);

  /// `stretch` >= 1: what the step takes of the emulated time, or else of the host's own time for
  /// its layers, each of which is stretched by a sleep behind it.
  void begin(std::int64_t now, double stretch = 1.0) noexcept {
    device_ns_ = now;
    mark_ns_ = now;
    worked_ns_ = 0;
    stretch_ = stretch;
  }
  /// The seam blocked for `blocked` ns until `now`: the device waited as well.
  void stalled(std::int64_t blocked, std::int64_t now) noexcept;
  void forward_done(int layer) noexcept { advance(forward_ns_[static_cast<std::size_t>(layer)]); }
  void backward_done(int layer) noexcept {
    advance(2 * forward_ns_[static_cast<std::size_t>(layer)]);
  }
  /// End of the step: counts it as late when the host needed over 5% longer than the device.
  void finish() noexcept;

  /// Share of steps that were late, 0 without pacing.
  [[nodiscard]] double late_fraction() const noexcept {
    return steps_ > 0 ? static_cast<double>(late_) / static_cast<double>(steps_) : 0.0;
  }

 private:
  void advance(std::int64_t ns) noexcept;
  void stretch_own_time() noexcept;

  std::int64_t emulate_ns_;
  std::vector<std::int64_t> forward_ns_;  ///< per layer
  std::int64_t device_ns_ = 0;
  double stretch_ = 1.0;
  std::int64_t mark_ns_ = 0;    ///< the host's own time counts from here
  std::int64_t worked_ns_ = 0;  ///< and was so much before, since the last layer's end
  std::int64_t steps_ = 0;
  std::int64_t late_ = 0;
};

}  // namespace paceline
