// SPDX-License-Identifier: Apache-2.0
// How a bucket's gradients become their sum over ranks: as they are, exactly, or compressed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/comm/transport.h"
#include "common/config/config.h"
#include "common/sync/synchronizer.h"
#include "ring/collective.h"

namespace paceline {

/// Where a reducer works. Everything outlives it.
struct ReducerPlace {
  const Config& config;
  Transport& transport;
  Collective& collective;
  const BucketPlan& plan;
  bool skips_nonfinite = false;  ///< the optimizer leaves out an update that is not finite
};

/// One per rank; used by the communication thread. All ranks reduce the same buckets in the same
/// order.
class GradientReducer {
 public:
  GradientReducer() = default;
  virtual ~GradientReducer() = default;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// `gradient` (bucket b's, this rank's sum) becomes the sum over ranks or its approximation, the
  /// same bits on every rank. Throws as Collective does, and Error where the gradient is out of the
  /// format's range.
  virtual RunTimes reduce(BucketId b, std::span<float> gradient, const StepInfo& step) = 0;

  /// Bytes besides the arenas.
  [[nodiscard]] virtual std::size_t staging_bytes() const noexcept { return 0; }
  [[nodiscard]] virtual std::size_t residual_bytes() const noexcept { return 0; }
};

/// The one that sync.exact, sync.wire and compress.method ask for, with its memory taken.
[[nodiscard]] std::unique_ptr<GradientReducer> make_gradient_reducer(const ReducerPlace& place);

/// Elements of the largest bucket.
[[nodiscard]] std::size_t largest_bucket(const BucketPlan& plan) noexcept;

}  // namespace paceline
