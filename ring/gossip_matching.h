// SPDX-License-Identifier: Apache-2.0
// Who exchanges weights with whom in a step of gossip.
#pragma once

#include <cstdint>
#include <optional>

namespace paceline {

enum class GossipGraph : std::uint8_t { ring, random };

/// The partner of `rank` in `step`; none: it is the odd one out. A function of its arguments alone,
/// so all ranks agree without a message; the pairs of one step are a matching (at most one rank
/// idle). ring: neighbours, (t, t+1), (t+2, t+3), ... modulo N, so every edge comes up in N steps
/// (in two for even N) and the idle rank moves on. random: a uniformly random matching of every
/// step (Fisher-Yates on a counter-based stream).
[[nodiscard]] std::optional<int> gossip_partner(GossipGraph graph, std::uint64_t seed,
                                                std::int64_t step, int rank, int world);

}  // namespace paceline
