// SPDX-License-Identifier: Apache-2.0
// Workers that step their own replicas and mix them all together every few steps, bucket by bucket,
// while backward and the next forward go on.
#pragma once

#include <cstdint>
#include <memory>

#include "ring/replica.h"

namespace paceline {

/// What all replicas do together; one per rank. mix() and show() run on the communication thread,
/// for every bucket once, in the same order on all ranks. In `step`, samples and global_samples
/// count this worker's and all workers' samples since the last mix.
class Mixing {
 public:
  Mixing() = default;
  virtual ~Mixing() = default;
  Mixing(const Mixing&) = delete;
  Mixing& operator=(const Mixing&) = delete;

  /// Takes memory. `replica` is bound and outlives this; `init` are its weights.
  virtual void bind(Replica& replica, std::span<const float> init) = 0;
  /// Changes the replica's bucket b. Its gradient is used up and is free memory for transfers.
  virtual RunTimes mix(BucketId b, const StepInfo& step) = 0;
  /// The replica's weights are set aside: those of bucket b become the model that is evaluated, the
  /// same bits on all ranks.
  virtual RunTimes show(BucketId b, const StepInfo& step) = 0;

  virtual void count_memory(MemoryUse& use) const noexcept = 0;
  virtual void save(StateWriter& writer) const = 0;
  virtual void load(StateReader& reader) = 0;
};

/// Mixes after every `period` local steps (1 and more). Training goes on with the replicas as they
/// were before quiesce(), so evaluations do not alter it. Staleness of a step: local steps since
/// the last mix, 0 to period - 1. Collective over the workers.
[[nodiscard]] std::unique_ptr<Synchronizer> make_averaging_synchronizer(
    const WorkerContext& context, std::int64_t period, std::unique_ptr<Mixing> mixing);

}  // namespace paceline
