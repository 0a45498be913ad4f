// SPDX-License-Identifier: Apache-2.0
// Which member of a job sits on which (emulated) node.
#pragma once

#include <vector>

namespace paceline {

/// Members are the workers 0..world-1 followed by the server processes world..world+servers-1.
/// Workers fill nodes in rank order, `ranks_per_node` to a node (0: all on one); each server
/// process has a node of its own behind them. A colocated server (a thread of rank r) is no member
/// and uses rank r's node.
class Topology {
 public:
  Topology(int world, int ranks_per_node, int servers);

  [[nodiscard]] int world() const noexcept { return world_; }
  [[nodiscard]] int servers() const noexcept { return servers_; }
  [[nodiscard]] int nodes() const noexcept { return nodes_; }
  [[nodiscard]] int ranks_per_node() const noexcept { return ranks_per_node_; }
  [[nodiscard]] int node_of_rank(int rank) const noexcept { return rank / ranks_per_node_; }
  [[nodiscard]] int node_of_server(int server) const noexcept { return worker_nodes_ + server; }
  [[nodiscard]] bool same_node(int rank_a, int rank_b) const noexcept {
    return node_of_rank(rank_a) == node_of_rank(rank_b);
  }
  /// Ranks of a worker node, ascending.
  [[nodiscard]] std::vector<int> ranks_of_node(int node) const;

 private:
  int world_;
  int servers_;
  int ranks_per_node_;
  int worker_nodes_;
  int nodes_;
};

}  // namespace paceline
