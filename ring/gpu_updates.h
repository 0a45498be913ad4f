// SPDX-License-Identifier: Apache-2.0
// What follows a bucket's sum where the sum is in the GPU's memory: the update, by bucket or of all
// buckets once norms of the whole gradient or of tensors are there.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/gpu/gpu_optimizer.h"
#include "common/sync/synchronizer.h"

namespace paceline {

/// A rank's weights and gradients in a device's memory.
class GpuArenas {
 public:
  /// Weights become `init`, gradients 0. Throws Error where init is not of the plan's size, or for
  /// want of memory.
  GpuArenas(Device& device, const BucketPlan& plan, std::span<const float> init);
  [[nodiscard]] ReplicaView view() const { return {weights_->values(), gradients_->values()}; }

 private:
  std::unique_ptr<DeviceArena> weights_;
  std::unique_ptr<DeviceArena> gradients_;
};

/// Which part of the weights this rank updates, and what ranks tell each other for that. Of one
/// rank, which updates all and tells nobody. Queues on one stream; spans are device memory.
class UpdateShares {
 public:
  UpdateShares() = default;
  virtual ~UpdateShares() = default;
  UpdateShares(const UpdateShares&) = delete;
  UpdateShares& operator=(const UpdateShares&) = delete;

  /// What of a bucket of `count` elements is this rank's to update.
  [[nodiscard]] virtual std::vector<Range> own(std::size_t count) const { return {{0, count}}; }
  /// Ranks between which own() differs, this one's place among them, and whether it adds `part`,
  /// one of own(count), to a norm over them: each element is one rank's.
  [[nodiscard]] virtual int ranks() const noexcept { return 1; }
  [[nodiscard]] virtual int rank() const noexcept { return 0; }
  [[nodiscard]] virtual bool counts_in_norm(const Range& /*part*/, std::size_t /*count*/) const {
    return true;
  }
  /// The owners' weights become everybody's.
  virtual void share(std::span<float> /*weights*/) {}
  /// *squares becomes its sum over ranks().
  virtual void add_up(float* /*squares*/) {}
  /// The other ranks' blocks of ratios.squares() are filled in, as they are: whoever adds them does
  /// so in double, in one order.
  virtual void gather(GpuTrustRatios& /*ratios*/) {}
  /// On the host. Throws where `event` cannot be reached any more.
  virtual void wait(const GpuEvent& event) const { event.synchronize("the gradient's norm"); }
};

/// Queues on one stream. With skip_nonfinite the device itself leaves an update out; the host hears
/// of it by decide() alone, which the next step's finish() calls when that step's work is queued.
/// Spans are device memory; all that it is given outlives it.
class GpuUpdates {
 public:
  GpuUpdates(Gpu& gpu, GpuStream& stream, UpdateShares& shares, const BucketPlan& plan,
             const OptimizerSpec& spec, const ReplicaView& arenas);
  ~GpuUpdates();
  GpuUpdates(const GpuUpdates&) = delete;
  GpuUpdates& operator=(const GpuUpdates&) = delete;

  /// What ranks tell each other once, so that they connect for it.
  void warm_up();
  /// Bucket b holds the sum: updates it, or all once the step's last bucket is summed.
  void finish(BucketId b, const StepInfo& step);
  /// Waits on the host until the last step's update is known to be taken or left out.
  void decide();

  /// Bucket b's weights may be read.
  [[nodiscard]] const GpuEvent& updated(BucketId b) const {
    return *updated_.at(static_cast<std::size_t>(b));
  }
  /// Updates left out that decide() found since the last call.
  [[nodiscard]] int take_skipped() noexcept { return std::exchange(skipped_, 0); }
  [[nodiscard]] GpuOptimizer& optimizer() noexcept { return *optimizer_; }
  [[nodiscard]] const GpuOptimizer& optimizer() const noexcept { return *optimizer_; }
  /// With the arenas.
  [[nodiscard]] MemoryUse memory() const noexcept;

 private:
  void update(BucketId b, float lr, float scale);
  void update_all(float lr, float scale);
  void find_norm(float scale);
  void clip();

  Gpu& gpu_;
  GpuStream& stream_;
  UpdateShares& shares_;
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
  bool undecided_ = false;
};

}  // namespace paceline
