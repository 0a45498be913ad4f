// SPDX-License-Identifier: Apache-2.0
// The optimizer of an owner of the whole arena: updates by bucket where elements are independent,
// and of all buckets at once where norms are needed (clipping, LARS, LAMB) or where one bad value
// spoils the whole update (loss scaling).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/core/optimizer.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// Factor on the gradient that brings its norm down to `clip_norm`; 1 where that is 0 (Pascanu,
/// Mikolov & Bengio 2013; the 1e-6 is PyTorch's).
[[nodiscard]] float clip_factor(double norm, float clip_norm) noexcept;

/// LARS: trust·|w| / (|g| + decay·|w|), 1 where a norm is 0.
[[nodiscard]] float lars_ratio(const OptimizerSpec& spec, double weight_norm,
                               double gradient_norm) noexcept;

/// Sum of squares in double; blocks are added in order, so it depends on `values` alone.
[[nodiscard]] double sum_of_squares(std::span<const float> values) noexcept;

/// clip_factor() of the gradient sum whose mean is `gradients`·scale; none where it is not finite
/// and spec.skip_nonfinite leaves it out.
[[nodiscard]] std::optional<float> gradient_factor(const OptimizerSpec& spec,
                                                   std::span<const float> gradients,
                                                   double scale) noexcept;

/// One per owner; one thread at a time. Counts the updates of each bucket.
class ArenaOptimizer {
 public:
  /// LARS and LAMB need plan.tensors(); throws Error without.
  ArenaOptimizer(const OptimizerSpec& spec, const BucketPlan& plan);

  /// weights = update by `gradients`·scale of bucket b, all spans over the whole arena. Only where
  /// !spec.whole_gradient().
  void apply_bucket(BucketId b, std::span<float> weights, std::span<const float> gradients,
                    float lr, float scale);

  /// The same for all buckets, whatever the rule needs; overwrites `gradients`. False: the gradient
  /// was not finite and the update was left out (spec.skip_nonfinite).
  [[nodiscard]] bool apply(std::span<float> weights, std::span<float> gradients, float lr,
                           float scale);

  [[nodiscard]] const OptimizerSpec& spec() const noexcept { return optimizer_.spec(); }
  [[nodiscard]] std::size_t state_bytes() const noexcept { return optimizer_.state_bytes(); }
  [[nodiscard]] Optimizer& elements() noexcept { return optimizer_; }
  [[nodiscard]] std::int64_t updates(BucketId b) const {
    return updates_.at(static_cast<std::size_t>(b));
  }
  void count_update(BucketId b) { ++updates_.at(static_cast<std::size_t>(b)); }

  void save(StateWriter& writer) const;
  void load(StateReader& reader);

 private:
  void apply_layerwise(std::span<float> weights, std::span<float> gradients, float lr, float scale);
  void apply_lars(const TensorRange& tensor, std::span<float> weights, std::span<float> gradients,
                  UpdateInfo info);
  void apply_lamb(const TensorRange& tensor, std::span<float> weights, std::span<float> gradients,
                  UpdateInfo info);

  BucketPlan plan_;
  Optimizer optimizer_;
  std::vector<std::int64_t> updates_;
};

}  // namespace paceline
