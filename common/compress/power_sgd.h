// SPDX-License-Identifier: Apache-2.0
// PowerSGD (Vogels, Karimireddy & Jaggi 2019): a gradient matrix M [n, m], summed over ranks, as
// P·Qᵀ of rank r by one step of power iteration that starts from the previous step's Q. It runs
// allreduces inside itself, so it stands beside the codecs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/buffer.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// One per rank; one thread at a time.
class PowerSgd {
 public:
  /// Sums over ranks in place; collective, called in the same order on every rank.
  using AllReduce = std::function<void(std::span<float>)>;

  /// `plan` has tensors. Tensors of one dimension, and those where r·(n + m) >= n·m, travel whole.
  /// Throws ConfigError naming compress.rank where no matrix is as wide as `rank`.
  PowerSgd(const BucketPlan& plan, int rank, bool error_feedback, std::uint64_t seed);

  /// The bucket's gradient [sum over this rank's samples] becomes the approximation of the sum over
  /// ranks, equal on every rank. Two allreduces: of all P and what travels whole, then of all Q.
  void reduce(BucketId b, std::span<float> gradient, const AllReduce& allreduce);

  /// Floats that one reduce() of bucket b hands to its allreduces.
  [[nodiscard]] std::size_t travelling(BucketId b) const;
  [[nodiscard]] std::size_t residual_bytes() const noexcept;
  /// Bytes of P, Q and scratch.
  [[nodiscard]] std::size_t staging_bytes() const noexcept;

 private:
  struct Matrix {
    Range range;  ///< in the arena
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::size_t q_begin = 0;  ///< into q_
  };
};

}  // namespace paceline
