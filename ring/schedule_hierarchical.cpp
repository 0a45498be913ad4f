// SPDX-License-Identifier: Apache-2.0
// Hierarchical allreduce: only sums leave a node, over all of its ranks at once.
#include <algorithm>
#include <vector>

#include "common/sync/reduction_order.h"
#include "ring/algorithms.h"

namespace paceline::algorithms {

namespace {

/// The buffer is cut into as many shards as the largest node has ranks. On each node local rank
/// s mod (ranks there) owns shard s, so a smaller node's ranks own several.
class Shards {
 public:
  Shards(const Topology& topology, std::size_t count) : count_(count) {
    const int nodes = topology.world() > 0 ? topology.node_of_rank(topology.world() - 1) + 1 : 0;
    for (int node = 0; node < nodes; ++node) {
      ranks_.push_back(topology.ranks_of_node(node));
      shards_ = std::max(shards_, static_cast<int>(ranks_.back().size()));
    }
  }

  [[nodiscard]] int shards() const noexcept { return shards_; }
  [[nodiscard]] int nodes() const noexcept { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] Range range(int shard) const noexcept { return ring_chunk(count_, shards_, shard); }
  [[nodiscard]] const std::vector<int>& ranks(int node) const {
    return ranks_[static_cast<std::size_t>(node)];
  }
  [[nodiscard]] int owner(int node, int shard) const {
    return ranks(node)[static_cast<std::size_t>(shard) % ranks(node).size()];
  }
  [[nodiscard]] std::vector<int> owners(int shard) const {
    std::vector<int> owners;
    for (int node = 0; node < nodes(); ++node) {
      owners.push_back(owner(node, shard));
    }
    return owners;
  }
  /// A shard's parts as the ring between the nodes cuts it.
  [[nodiscard]] Range part(int shard, int index) const {
    const Range whole = range(shard);
    const Range part = ring_chunk(whole.size(), nodes(), index);
    return {whole.begin + part.begin, whole.begin + part.end};
  }

 private:
  std::size_t count_;
  std::vector<std::vector<int>> ranks_;
  int shards_ = 0;
};

}  // namespace

void hierarchical_allreduce(ScheduleBuilder& builder, const Topology& topology) {
  const Shards shards(topology, builder.count());
  const int rank = builder.rank();
  const int node = topology.node_of_rank(rank);
  const auto own = [&](int shard) { return shards.owner(node, shard) == rank; };

  // Parts in the order in which the ring between nodes uses them, beginning with what this node
  // sends first; ranks of one node agree on it.
  const auto for_parts = [&](int shard, int first, auto visit) {
    for (int k = 0; k < shards.nodes(); ++k) {
      visit(shards.part(shard, (first + shards.nodes() - k) % shards.nodes()));
    }
  };
  const int first_out = (node + shards.nodes() - 1) % shards.nodes();
  for (int shard = 0; shard < shards.shards(); ++shard) {
    for_parts(shard, first_out, [&](Range part) {
      for (const int peer : shards.ranks(node)) {
        if (own(shard) && peer != rank) {
          builder.receive(peer, part, true);
        } else if (!own(shard) && peer == shards.owner(node, shard)) {
          builder.send(peer, part);
        }
      }
    });
  }
  for (int shard = 0; shard < shards.shards(); ++shard) {
    if (own(shard)) {
      const std::vector<int> owners = shards.owners(shard);
      ring_reduce_scatter(builder, owners, node, shards.range(shard));
      ring_allgather(builder, owners, node, shards.range(shard));
    }
  }
  for (int shard = 0; shard < shards.shards(); ++shard) {
    for_parts(shard, node, [&](Range part) {
      for (const int peer : shards.ranks(node)) {
        if (own(shard) && peer != rank) {
          builder.send(peer, part);
        } else if (!own(shard) && peer == shards.owner(node, shard)) {
          builder.receive(peer, part, false);
        }
      }
    });
  }
}

}  // namespace paceline::algorithms
