// SPDX-License-Identifier: Apache-2.0
// How fast this machine moves bytes, measured within a second for `paceline doctor`.
#pragma once

#include <string>

namespace paceline {

/// Of one TCP connection over the loopback interface between two threads.
struct LoopbackSpeed {
  double bytes_per_second = 0.0;   ///< one way, 1 MiB writes
  double half_round_trip_s = 0.0;  ///< median, one byte each way, blocking reads
  std::string error;               ///< why it could not be measured; empty otherwise
};

/// `ipv6`: ::1 instead of 127.0.0.1. Takes about 0.3 s; gives up after 2 s without progress.
[[nodiscard]] LoopbackSpeed measure_loopback(bool ipv6);

/// Bytes per second that one thread copies between two 64 MiB buffers, warm. Takes about 0.2 s.
[[nodiscard]] double measure_memcpy();

}  // namespace paceline
