// SPDX-License-Identifier: Apache-2.0
// Device time of stretches of a stream's work, by timed events; the host never waits for them.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "common/core/gpu/gpu.h"

namespace paceline {

/// Not thread-safe; any one thread at a time that made the Gpu current.
class GpuStopwatch final : public Stopwatch {
 public:
  /// Both outlive it.
  GpuStopwatch(const Gpu& gpu, GpuStream& stream) : gpu_(gpu), stream_(stream) {}

  void start() override;
  void stop() override;
  [[nodiscard]] double take_seconds() override;

  /// Stretches that were stopped and whose end the device has not reached, in order of start().
  [[nodiscard]] std::size_t open();
  /// Whether the device has come to the first of them, of which there is one.
  [[nodiscard]] bool first_begun() const { return stretches_.front().begun->reached(); }

 private:
  struct Stretch {
    std::unique_ptr<GpuEvent> begun;
    std::unique_ptr<GpuEvent> ended;
  };

  void collect();
  [[nodiscard]] std::unique_ptr<GpuEvent> event();

  const Gpu& gpu_;
  GpuStream& stream_;
  Stretch next_;
  std::deque<Stretch> stretches_;
  std::vector<std::unique_ptr<GpuEvent>> spare_;
  double seconds_ = 0.0;
};

}  // namespace paceline
