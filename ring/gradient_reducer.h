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
  bool own_chunk_only = false;   ///< each rank needs the sum of its ring_chunk of a bucket alone
};

/// Sums messages of a bucket over ranks, on all ranks or each chunk on its owner.
class ChunkedSum {
 public:
  explicit ChunkedSum(const ReducerPlace& place)
      : rank_(place.transport.rank()),
        world_(place.transport.size()),
        own_chunk_only_(place.own_chunk_only),
        collective_(place.collective) {}

  void prepare(std::size_t elements, DataType type);
  RunTimes operator()(std::span<std::byte> data, DataType type);
  /// The part of `elements` that is the sum afterwards.
  [[nodiscard]] Range summed(std::size_t elements) const noexcept;

 private:
  int rank_;
  int world_;
  bool own_chunk_only_;
  Collective& collective_;
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
  /// same bits on every rank; with own_chunk_only in this rank's ring_chunk, the rest is
  /// unspecified. Throws as Collective does, and Error where the gradient is out of the format's
  /// range.
  virtual RunTimes reduce(BucketId b, std::span<float> gradient, const StepInfo& step) = 0;

  /// Bytes besides the arenas.
  [[nodiscard]] virtual std::size_t staging_bytes() const noexcept { return 0; }
  [[nodiscard]] virtual std::size_t residual_bytes() const noexcept { return 0; }
};

/// The one that sync.exact, sync.wire and compress.method ask for, with its memory taken;
/// own_chunk_only goes with formats that are summable element by element (not compressors).
[[nodiscard]] std::unique_ptr<GradientReducer> make_gradient_reducer(const ReducerPlace& place);

/// Elements of the largest bucket.
[[nodiscard]] std::size_t largest_bucket(const BucketPlan& plan) noexcept;

}  // namespace paceline
