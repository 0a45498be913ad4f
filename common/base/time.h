// SPDX-License-Identifier: Apache-2.0
// Monotonic time in nanoseconds, comparable between processes of one machine, and deadlines.
#pragma once

#include <chrono>
#include <cstdint>

namespace paceline {

using Nanoseconds = std::chrono::nanoseconds;

/// CLOCK_MONOTONIC in ns. The same clock in every process of this machine.
[[nodiscard]] std::int64_t now_ns() noexcept;

/// Sleeps until CLOCK_MONOTONIC reaches `ns` (absolute, so errors do not add up). Returns at once
/// for a time in the past. Lowers the calling thread's timer slack to 1 µs on first use.
void sleep_until_ns(std::int64_t ns) noexcept;

[[nodiscard]] inline double seconds(std::int64_t ns) noexcept {
  return static_cast<double>(ns) * 1e-9;
}

/// A point in time after which a wait gives up.
class Deadline {
 public:
  static Deadline after(Nanoseconds timeout) noexcept {
    return Deadline(now_ns() + timeout.count());
  }
  static Deadline at_ns(std::int64_t ns) noexcept { return Deadline(ns); }
  [[nodiscard]] bool passed() const noexcept { return now_ns() >= ns_; }
  /// Time left, never negative.
  [[nodiscard]] Nanoseconds left() const noexcept {
    const std::int64_t left = ns_ - now_ns();
    return Nanoseconds(left > 0 ? left : 0);
  }
  [[nodiscard]] std::int64_t ns() const noexcept { return ns_; }

 private:
  explicit Deadline(std::int64_t ns) noexcept : ns_(ns) {}
  std::int64_t ns_;
};

}  // namespace paceline
