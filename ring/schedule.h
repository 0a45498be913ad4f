// SPDX-License-Identifier: Apache-2.0
// A collective as data: for each rank a dependency graph of sends, receives and local operations on
// element ranges of one buffer. Independent of element type and of any I/O: the executor runs it
// over a Transport, a simulator on a virtual clock, and schedule_check.h symbolically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/comm/topology.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

enum class OperationKind : std::uint8_t {
  send,     ///< range -> peer
  receive,  ///< range = or += message from peer
  local,    ///< range = or += elements from `source` on
};

/// Elements 0..count-1 are the user's buffer, those from `count` on scratch memory.
struct Operation {
  OperationKind kind = OperationKind::local;
  bool add = false;        ///< receive, local: add to range instead of overwriting it
  int peer = 0;            ///< send, receive
  Range range;             ///< never empty
  std::size_t source = 0;  ///< local: first element read; [source, source+range.size())
};

/// One rank's part of a collective.
///
/// An operation may start when all its dependencies, which lie before it in the list, are complete.
/// The k-th send from a to b in list order matches the k-th receive of b from a in list order, so
/// whoever runs a schedule starts the operations of one peer and direction in list order. A send
/// may complete as late as its receive does (nothing relies on buffering).
class Schedule {
 public:
  using Index = std::uint32_t;

  int rank = 0;
  int world = 1;
  std::size_t count = 0;    ///< elements of the buffer
  std::size_t scratch = 0;  ///< elements of scratch memory behind it; contents unspecified
  std::vector<Operation> operations;
  std::vector<Index> dependencies;      ///< of operation i: [first_dependency[i], [i+1])
  std::vector<Index> first_dependency;  ///< operations.size() + 1 entries

  [[nodiscard]] std::span<const Index> dependencies_of(Index operation) const noexcept {
    return std::span(dependencies)
        .subspan(first_dependency[operation],
                 first_dependency[operation + 1] - first_dependency[operation]);
  }
  /// Elements this rank sends.
  [[nodiscard]] std::size_t elements_sent() const noexcept;
};

enum class CollectiveKind : std::uint8_t {
  allreduce,       ///< every element becomes the sum over ranks, on every rank
  reduce_scatter,  ///< rank r's chunk (ring_chunk(count, world, r)) becomes the sum; the rest of
                   ///< the buffer is unspecified afterwards
  allgather,       ///< chunk c of every rank becomes rank c's chunk c
  all_to_all,      ///< of 2N equal blocks, block N + r becomes rank r's block of this rank's number
};

enum class Algorithm : std::uint8_t {
  /// Reduce-scatter around the ring, then allgather around it (Patarasuk & Yuan 2009). 2(N-1)
  /// rounds, 2(N-1)/N of the buffer sent per rank.
  ring,
  /// Every rank sends each chunk to its owner, who folds them in ring order and sends the sum to
  /// all: two rounds and the ring's traffic, at the price of N-1 peers. Scratch: one chunk.
  direct,
  /// Every rank sends its whole buffer to all and folds in ring order: one round, N-1 times the
  /// buffer sent per rank. Scratch: N-1 buffers. N(N-1) local operations: for small N only.
  oneshot,
  /// Reduce and broadcast over two binary trees, half of the buffer each (Sanders, Speck & Träff
  /// 2009), pipelined.
  tree,
  /// Recursive vector halving and distance doubling (Rabenseifner 2004); ranks beyond the largest
  /// power of two fold into a neighbour first.
  halving_doubling,
  /// Recursive doubling: the whole buffer exchanged in log2 N rounds. Scratch: one buffer.
  doubling,
  /// Reduce-scatter within each node, allreduce between the nodes' owners of each shard (ring),
  /// allgather within each node.
  hierarchical,
};

/// Whether the sums have the order of common/sync/reduction_order.h, and so the bits of `ring`.
[[nodiscard]] bool keeps_ring_order(Algorithm algorithm, int world) noexcept;

[[nodiscard]] std::string_view algorithm_name(Algorithm algorithm) noexcept;
/// Throws ConfigError naming the text and what is allowed.
[[nodiscard]] Algorithm parse_algorithm(std::string_view name);

struct ScheduleRequest {
  CollectiveKind kind = CollectiveKind::allreduce;
  Algorithm algorithm = Algorithm::ring;
  int rank = 0;
  int world = 1;
  std::size_t count = 0;
  std::size_t piece = 0;               ///< elements per message at most, for pipelining; 0: whole
  const Topology* topology = nullptr;  ///< hierarchical only
};

/// Builds one rank's schedule in time proportional to its length (times a logarithm).
/// reduce_scatter and allgather exist as ring and direct, all_to_all as direct. Throws Error for
/// what does not exist.
[[nodiscard]] Schedule build_schedule(const ScheduleRequest& request);

}  // namespace paceline
