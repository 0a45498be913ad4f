// SPDX-License-Identifier: Apache-2.0
// The optimizer of the weights that a rank updates on its GPU: state in device memory, one launch
// per range, or per bucket where the rule needs norms of tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/core/gpu/gpu.h"
#include "common/core/gpu/gpu_trust_ratios.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/optimizer_spec.h"
#include "common/sync/state_io.h"

namespace paceline {

/// Queues on `stream`; arenas are device memory of plan.elements() floats. All outlive it.
class GpuOptimizer {
 public:
  /// For rules whose elements are independent: SGD and Adam.
  GpuOptimizer(Gpu& gpu, GpuStream& stream, const OptimizerSpec& spec, OwnRanges own);
  /// For those and for LARS and LAMB, which need plan.tensors(); throws Error without.
  GpuOptimizer(Gpu& gpu, GpuStream& stream, const OptimizerSpec& spec, const BucketPlan& plan,
               OwnRanges own, const TensorShares& shares);

  /// Of LARS and LAMB, else null: before a step's updates find_squares(), where ranks own different
  /// parts an all-gather of their blocks of squares(), then find() with the same scale.
  [[nodiscard]] GpuTrustRatios* ratios() noexcept { return ratios_ ? &*ratios_ : nullptr; }
  [[nodiscard]] const GpuTrustRatios* ratios() const noexcept {
    return ratios_ ? &*ratios_ : nullptr;
  }
  /// This rank's block of ratios()->squares(). LAMB: `gradients`, all summed, become directions.
  void find_squares(std::span<float> weights, std::span<float> gradients, float scale);

  /// weights = update by `gradients`·scale of what is own of bucket b. LAMB: by the directions.
  void update(BucketId b, std::span<float> weights, std::span<const float> gradients, float lr,
              float scale);

  /// From now on the device leaves out an update, and LAMB's directions, while *squares is inf or
  /// NaN. Device memory that outlives it.
  void leave_out_unless_finite(const float* squares) noexcept { squares_ = squares; }
  /// The last update of every bucket was left out: it does not count in what comes.
  void was_left_out() noexcept;

  [[nodiscard]] std::size_t state_bytes() const noexcept { return state_.values().size_bytes(); }
  /// While nothing is queued; through the host, as Optimizer does.
  void save(StateWriter& writer) const;
  void load(StateReader& reader);

 private:
  struct State {
    std::unique_ptr<DeviceArena> arena;  ///< null: none
    [[nodiscard]] std::span<float> values() const noexcept {
      return arena != nullptr ? arena->values() : std::span<float>{};
    }
  };

  /// `count` elements, or pieces where there are ratios.
  void queue(const UpdateInfo& info, kernels::UpdateOperands operands, std::int64_t count);
  void update_ranges(std::size_t b, const UpdateInfo& info, float* weights, const float* gradients);
  /// Moment `index` from element `begin` on; null: the rule has none.
  [[nodiscard]] float* moment(std::size_t index, std::size_t begin) const noexcept {
    const std::size_t at = index * elements_ + begin;
    return at < state_.values().size() ? state_.values().data() + at : nullptr;
  }

  Gpu& gpu_;
  GpuStream& stream_;
  OptimizerSpec spec_;
  OwnRanges own_;
  std::size_t elements_;             ///< own ones
  State state_;                      ///< first moments, then second ones, each in the order of own_
  std::vector<std::size_t> begins_;  ///< of each bucket in a moment
  std::vector<std::int64_t> updates_;
  std::optional<GpuTrustRatios> ratios_;
  const float* squares_ = nullptr;
};

/// The sum of squares of the mean gradient, in device memory. Queues on `stream`.
class GpuNorm {
 public:
  /// Of `ranges` of an arena.
  GpuNorm(Gpu& gpu, GpuStream& stream, std::vector<Range> ranges);

  /// *squares() = Σ (gradients[i]·scale)² over the ranges.
  void compute(std::span<const float> gradients, float scale);
  [[nodiscard]] float* squares() const noexcept { return total_.as<float>(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return partial_.size() + total_.size(); }

 private:
  Gpu& gpu_;
  GpuStream& stream_;
  std::vector<Range> ranges_;
  std::int64_t blocks_ = 0;
  GpuMemory partial_;
  GpuMemory total_;
};

}  // namespace paceline
