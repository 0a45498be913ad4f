// SPDX-License-Identifier: Apache-2.0
// The optimizer of the weights that a rank updates on its GPU: state in device memory, one launch
// per range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/core/gpu/gpu.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/optimizer_spec.h"
#include "common/sync/state_io.h"

namespace paceline {

/// The ranges of each bucket that are this rank's, relative to the arena.
using OwnRanges = std::vector<std::vector<Range>>;

/// For rules whose elements are independent: SGD and Adam. Queues on `stream`; arenas are device
/// memory of plan.elements() floats. All outlive it.
class GpuOptimizer {
 public:
  GpuOptimizer(Gpu& gpu, GpuStream& stream, const OptimizerSpec& spec, OwnRanges own);

  /// weights = update by `gradients`·scale of what is own of bucket b.
  void update(BucketId b, std::span<float> weights, std::span<const float> gradients, float lr,
              float scale);

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

  Gpu& gpu_;
  GpuStream& stream_;
  OptimizerSpec spec_;
  OwnRanges own_;
  std::size_t elements_;             ///< own ones
  State state_;                      ///< first moments, then second ones, each in the order of own_
  std::vector<std::size_t> begins_;  ///< of each bucket in a moment
  std::vector<std::int64_t> updates_;
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
