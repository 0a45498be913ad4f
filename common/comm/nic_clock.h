// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the emulated NIC, free of wall time so that tests can check it exactly.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace paceline {

/// Time `bytes` take on a wire of `bytes_per_second` (> 0), in ns, rounded up: never too fast.
[[nodiscard]] inline std::int64_t wire_ns(std::size_t bytes, double bytes_per_second) noexcept {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_second));
}

/// One direction of one NIC: the time at which it is free again.
struct NicClock {
  alignas(64) std::atomic<std::int64_t> free_ns;

  /// Takes the wire for `duration_ns` from `earliest_ns` on, or from when it is free; returns when
  /// it begins. Any thread.
  std::int64_t reserve(std::int64_t earliest_ns, std::int64_t duration_ns) noexcept {
    std::int64_t free = free_ns.load(std::memory_order_relaxed);
    std::int64_t begin = 0;
    do {
      begin = free > earliest_ns ? free : earliest_ns;
    } while (!free_ns.compare_exchange_weak(free, begin + duration_ns, std::memory_order_relaxed));
    return begin;
  }
};

}  // namespace paceline
