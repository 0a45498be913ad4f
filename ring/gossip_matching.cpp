// SPDX-License-Identifier: Apache-2.0
#include "ring/gossip_matching.h"

#include <cstdlib>
#include <numeric>
#include <utility>

#include "common/core/random.h"

namespace paceline {

namespace {

/// A permutation of 0..world-1 in which neighbours at 2k and 2k+1 are partners.
std::vector<int> seats_in_step(GossipGraph graph, std::uint64_t seed, std::int64_t step,
                               int world) {
  std::vector<int> seats(static_cast<std::size_t>(world));
  if (graph == GossipGraph::ring) {
    std::iota(seats.begin(), seats.end(), static_cast<int>(step % world));
    for (int& rank : seats) {
      rank %= world;
    }
    return seats;
  }
  std::iota(seats.begin(), seats.end(), 0);
  const std::uint64_t key =
      stream_key(stream_key(seed, "gossip"), static_cast<std::uint64_t>(step));
  for (std::uint64_t last = seats.size() - 1; last > 0; --last) {
    std::swap(seats[last], seats[splitmix64(key + last) % (last + 1)]);
  }
  return seats;
}

}  // namespace

GossipGraph parse_gossip_graph(std::string_view name) noexcept {
  return name == "ring" ? GossipGraph::ring : GossipGraph::random;
}

std::optional<int> gossip_partner(GossipGraph graph, std::uint64_t seed, std::int64_t step,
                                  int rank, int world) {
  const std::vector<int> seats = seats_in_step(graph, seed, step, world);
  for (std::size_t i = 0; i + 1 < seats.size(); i += 2) {
    if (seats[i] == rank) {
      return seats[i + 1];
    }
    if (seats[i + 1] == rank) {
      return seats[i];
    }
  }
  return std::nullopt;
}

std::vector<int> gossip_neighbours(GossipGraph graph, int rank, int world) {
  std::vector<int> neighbours;
  for (int other = 0; other < world; ++other) {
    const int apart = std::abs(other - rank);
    const bool near = apart == 1 || apart == world - 1;
    if (gossip_calls(other) != gossip_calls(rank) && (graph == GossipGraph::random || near)) {
      neighbours.push_back(other);
    }
  }
  return neighbours;
}

int gossip_callee(GossipGraph graph, std::uint64_t seed, std::int64_t call, int rank, int world) {
  const std::vector<int> neighbours = gossip_neighbours(graph, rank, world);
  const std::uint64_t key =
      stream_key(stream_key(seed, "gossip calls"), static_cast<std::uint64_t>(rank));
  return neighbours[splitmix64(key + static_cast<std::uint64_t>(call)) % neighbours.size()];
}

}  // namespace paceline
