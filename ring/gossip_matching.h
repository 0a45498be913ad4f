// SPDX-License-Identifier: Apache-2.0
// Who exchanges weights with whom in a step of gossip.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace paceline {

enum class GossipGraph : std::uint8_t { ring, random };

/// Of gossip.graph.
[[nodiscard]] GossipGraph parse_gossip_graph(std::string_view name) noexcept;

/// The partner of `rank` in `step`; none: it is the odd one out. A function of its arguments alone,
/// so all ranks agree without a message; the pairs of one step are a matching (at most one rank
/// idle). ring: neighbours, (t, t+1), (t+2, t+3), ... modulo N, so every edge comes up in N steps
/// (in two for even N) and the idle rank moves on. random: a uniformly random matching of every
/// step (Fisher-Yates on a counter-based stream).
[[nodiscard]] std::optional<int> gossip_partner(GossipGraph graph, std::uint64_t seed,
                                                std::int64_t step, int rank, int world);

/// Asynchronous gossip: even ranks call, odd ranks answer. As every edge joins one of each, nobody
/// that answers ever waits for an answer, so there is no cycle of waits (AD-PSGD's bipartite
/// graph).
[[nodiscard]] constexpr bool gossip_calls(int rank) noexcept {
  return rank % 2 == 0;
}

/// The ranks that `rank` may call, or be called by; never none (world of 2 and more). ring: its
/// neighbours, without the edge between N-1 and 0 where both are even (odd N): what is left is the
/// path 0, 1, ..., N-1, so all ranks are still connected. random: all ranks of the other kind.
[[nodiscard]] std::vector<int> gossip_neighbours(GossipGraph graph, int rank, int world);

/// Whom `rank`, which calls, calls in its averaging number `call`: one of its neighbours, all
/// equally likely. A function of its arguments alone.
[[nodiscard]] int gossip_callee(GossipGraph graph, std::uint64_t seed, std::int64_t call, int rank,
                                int world);

}  // namespace paceline
