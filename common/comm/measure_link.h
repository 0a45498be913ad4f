// SPDX-License-Identifier: Apache-2.0
// Measures what a link between two ranks really gives, so that results record it beside what was
// asked for.
#pragma once

#include "common/comm/transport.h"

namespace paceline {

struct LinkMeasurement {
  double bytes_per_second = 0.0;  ///< of one large transfer, without the latency
  double round_trip_s = 0.0;      ///< of an empty message there and one back
  double took_s = 0.0;            ///< the measurement itself, on `from`
};

/// Bytes that a measurement of a link of `expected_bytes_per_second` (0: not shaped) transfers:
/// 4 MiB, or less where that would take more than half a second, in whole pieces of the NIC.
[[nodiscard]] std::size_t measurement_bytes(double expected_bytes_per_second) noexcept;

/// Called by `from` and `to` alike, with nothing else on their link; other ranks need not take part
/// (a caller usually puts a barrier around it). Both get the same figures: the median of several
/// round trips, and the rate `from` → `to` of the shortest of several transfers less the shortest
/// round trip, because a busy machine only ever adds time. Throws as Transport::wait does.
[[nodiscard]] LinkMeasurement measure_link(Transport& transport, int from, int to,
                                           double expected_bytes_per_second,
                                           const Deadline& deadline);

}  // namespace paceline
