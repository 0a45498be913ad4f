// SPDX-License-Identifier: Apache-2.0
#include "common/comm/topology.h"

namespace paceline {

Topology::Topology(int world, int ranks_per_node, int servers)
    : world_(world),
      servers_(servers),
      ranks_per_node_(ranks_per_node > 0 ? ranks_per_node : world),
      worker_nodes_((world + ranks_per_node_ - 1) / ranks_per_node_),
      nodes_(worker_nodes_ + servers) {}

std::vector<int> Topology::ranks_of_node(int node) const {
  std::vector<int> ranks;
  for (int rank = node * ranks_per_node_; rank < world_ && rank < (node + 1) * ranks_per_node_;
       ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace paceline
