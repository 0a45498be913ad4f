// SPDX-License-Identifier: Apache-2.0
// How NCCL makes a bucket's gradients their sum over ranks: flat, within nodes first, or each
// shard on its owner.
#pragma once

#include <cstddef>
#include <memory>

#include "common/comm/topology.h"
#include "ring/gpu_updates.h"
#include "ring/nccl_communicator.h"

namespace paceline {

/// Queues on one stream; all ranks sum the same buckets in the same order. own() of a bucket holds
/// the sum after sum().
class NcclSum : public UpdateShares {
 public:
  NcclSum(NcclCommunicators& comms, GpuStream& stream) noexcept : comms_(comms), stream_(stream) {}

  /// `values`, `count` elements of `format` in device memory, become the sum over ranks where own()
  /// says so.
  virtual void sum(void* values, std::size_t count, Precision format) = 0;
  /// Ends by exception soon after the communicators have failed.
  void wait(const GpuEvent& event) const override;

 protected:
  NcclCommunicators& comms_;
  GpuStream& stream_;
};

/// One allreduce between all ranks, by what NCCL chooses.
[[nodiscard]] std::unique_ptr<NcclSum> make_flat_sum(NcclCommunicators& comms, GpuStream& stream);

/// Reduce-scatter and all-gather over the largest multiple of N elements; the fewer than N that
/// remain are summed everywhere and updated by every rank alike. State for floor(n/N) + n mod N
/// elements of each bucket.
[[nodiscard]] std::unique_ptr<NcclSum> make_sharded_sum(NcclCommunicators& comms,
                                                        GpuStream& stream);

/// Where all nodes have L ranks: reduce-scatter within the node, allreduce of each L-th with the
/// ranks of the same place in other nodes, all-gather within the node, so that all of a node's
/// links to others are used. What is no multiple of L, and all of it where nodes differ: allreduce
/// within the node, allreduce between the nodes' first ranks, broadcast within the node.
/// Collective.
[[nodiscard]] std::unique_ptr<NcclSum> make_hierarchical_sum(NcclCommunicators& comms,
                                                             GpuStream& stream,
                                                             const Topology& topology);

}  // namespace paceline
