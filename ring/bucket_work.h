// SPDX-License-Identifier: Apache-2.0
// What becomes of a bucket between gradient_ready and parameters_needed, and who keeps the memory
// for it: every rank updates all weights (replicated), or each its shard (sharded).
#pragma once

#include <memory>
#include <span>

#include "common/comm/transport.h"
#include "common/config/config.h"
#include "common/sync/synchronizer.h"
#include "ring/collective.h"
#include "ring/communication_thread.h"

namespace paceline {

/// Where a work is done. Everything but `init` outlives it.
struct WorkPlace {
  const Config& config;
  Transport& transport;
  Collective& collective;
  const BucketPlan& plan;
  const OptimizerSpec& spec;
  std::span<const float> init;  ///< plan.elements() floats
};

/// One per rank. All ranks do the same buckets in the same order.
class BucketWork {
 public:
  BucketWork() = default;
  virtual ~BucketWork() = default;
  BucketWork(const BucketWork&) = delete;
  BucketWork& operator=(const BucketWork&) = delete;

  [[nodiscard]] virtual ReplicaView view() noexcept = 0;

  /// Sums bucket b's gradients over ranks and updates its weights; with spec.whole_gradient() the
  /// step's last bucket updates all. On the communication thread; throws as Collective does.
  virtual BucketCost run(BucketId b, const StepInfo& step) = 0;

  /// While nothing runs.
  [[nodiscard]] virtual MemoryUse memory() const noexcept = 0;
  virtual void save(StateWriter& writer) const = 0;
  virtual void load(StateReader& reader) = 0;
};

/// Allreduce, then the same update of all weights on every rank.
[[nodiscard]] std::unique_ptr<BucketWork> make_replicated_work(const WorkPlace& place);

/// ZeRO stage 1 (Rajbhandari et al. 2020): reduce-scatter, each rank's optimizer steps its
/// ring_chunk of every bucket and holds state for those elements alone, allgather of the weights.
/// Per rank and bucket of n elements that is 2(N-1)/N·4n bytes on the wire, as an allreduce around
/// a ring, and state for at most ceil(n/N) elements. Norms (clipping, LARS, LAMB) are the ranks'
/// sums of squares, in double and added in rank order, from one small allgather each; so those
/// rules follow the replicated update to rounding, all others bit for bit. Throws Error for 1-bit
/// Adam.
[[nodiscard]] std::unique_ptr<BucketWork> make_sharded_work(const WorkPlace& place);

}  // namespace paceline
