// SPDX-License-Identifier: Apache-2.0
// What follows a bucket's sum under sync=nccl: the update, by bucket or of all buckets once norms
// of the whole gradient or of tensors are there.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/gpu/gpu_optimizer.h"
#include "common/sync/synchronizer.h"
#include "ring/nccl_sum.h"

namespace paceline {

/// Ends by exception soon after the communicators have failed.
void wait_on_host(const GpuEvent& event, NcclCommunicators& comms);

/// Queues on one stream, which it waits for in decide() alone. Spans are device memory; all that it
/// is given outlives it.
class NcclUpdates {
 public:
  NcclUpdates(Gpu& gpu, GpuStream& stream, NcclCommunicators& comms, NcclSum& sum,
              const BucketPlan& plan, const OptimizerSpec& spec, const ReplicaView& arenas);
  ~NcclUpdates();
  NcclUpdates(const NcclUpdates&) = delete;
  NcclUpdates& operator=(const NcclUpdates&) = delete;

  /// The collectives of norms once, so that NCCL connects for them.
  void warm_up();
  /// Bucket b holds the sum: updates it, or all once the step's last bucket is summed.
  void finish(BucketId b, const StepInfo& step);
  /// Takes or leaves the last step's update where the host has to see its norm first.
  void decide();

  /// Bucket b's weights may be read.
  [[nodiscard]] const GpuEvent& updated(BucketId b) const {
    return *updated_.at(static_cast<std::size_t>(b));
  }
  /// Updates left out since the last call.
  [[nodiscard]] int take_skipped() noexcept { return std::exchange(skipped_, 0); }
  [[nodiscard]] GpuOptimizer& optimizer() noexcept { return *optimizer_; }
  [[nodiscard]] const GpuOptimizer& optimizer() const noexcept { return *optimizer_; }
  /// For norms.
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  void update(BucketId b, float lr, float scale);
  void update_all(float lr, float scale);
  void share_squares();
  void find_norm(const StepInfo& step, float scale);
  void sum_norm();
  void clip();

  struct Update {
    float lr;
    float scale;
  };

  Gpu& gpu_;
  GpuStream& stream_;
  NcclCommunicators& comms_;
  NcclSum& sum_;
  const BucketPlan& plan_;
  OptimizerSpec spec_;
  ReplicaView arenas_;
  std::optional<GpuOptimizer> optimizer_;
  std::optional<GpuNorm> norm_;
  Buffer host_squares_;
  std::optional<PinnedRange> pinned_;
  GpuEvent norm_known_;
  std::vector<std::unique_ptr<GpuEvent>> updated_;
  int summed_ = 0;  ///< buckets of this step (whole_gradient)
  int skipped_ = 0;
  std::optional<Update> undecided_;
};

}  // namespace paceline
