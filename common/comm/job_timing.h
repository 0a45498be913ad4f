// SPDX-License-Identifier: Apache-2.0
// The intervals of the control plane, all fractions of comm.timeout.
#pragma once

#include <algorithm>

#include "common/base/time.h"

namespace paceline {

/// Silence after which a member or the hub counts as lost: early enough that every survivor is gone
/// within the whole timeout.
[[nodiscard]] constexpr Nanoseconds silence_limit(Nanoseconds timeout) noexcept {
  return timeout * 6 / 10;
}

/// How long a failure that may follow from another's loss is held back.
[[nodiscard]] constexpr Nanoseconds settle_time(Nanoseconds timeout) noexcept {
  return std::min<Nanoseconds>(timeout / 20, std::chrono::milliseconds(100));
}

/// Measures time in ticks that the watcher was awake for. A watcher that was stopped or starved
/// itself sees one tick of at most twice the interval, so it does not blame its peers.
class Ticker {
 public:
  explicit Ticker(Nanoseconds timeout) noexcept
      : interval_(std::clamp<Nanoseconds>(timeout / 40, std::chrono::milliseconds(2),
                                          std::chrono::milliseconds(250))),
        heartbeat_(timeout / 10),
        last_ns_(now_ns()) {}

  [[nodiscard]] Nanoseconds interval() const noexcept { return interval_; }
  [[nodiscard]] Nanoseconds elapsed() noexcept {
    const std::int64_t now = now_ns();
    const Nanoseconds passed(now - last_ns_);
    last_ns_ = now;
    return std::min(passed, 2 * interval_);
  }
  [[nodiscard]] bool heartbeat_due(Nanoseconds elapsed) noexcept {
    since_heartbeat_ += elapsed;
    if (since_heartbeat_ < heartbeat_) {
      return false;
    }
    since_heartbeat_ = Nanoseconds(0);
    return true;
  }

 private:
  Nanoseconds interval_;
  Nanoseconds heartbeat_;
  Nanoseconds since_heartbeat_{0};
  std::int64_t last_ns_;
};

}  // namespace paceline
