// SPDX-License-Identifier: Apache-2.0
// PowerSGD (Vogels, Karimireddy & Jaggi 2019): a gradient matrix M [n, m], summed over ranks, as
// P·Qᵀ of rank r by one step of power iteration that starts from the previous step's Q. It runs
// allreduces inside itself, so it stands beside the codecs.
//
//   M_i = gradient_i + residual_i
//   P = Σ M_i·Q, columns orthonormalised      (first allreduce, with what travels whole)
//   Q_i = M_iᵀ·P, residual_i = M_i − P·Q_iᵀ   (the rank's own part that P does not span)
//   Q = Σ Q_i                                 (second allreduce)
//   result = P·Qᵀ = Σ M_i − Σ residual_i
// The residual is the paper's local error, M_i − decompressed(compressed(M_i)), with the common P:
// over all ranks it holds exactly what the result lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/buffer.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// Throws ConfigError naming compress.rank, its value and the largest allowed one where no matrix
/// of `plan` (which has tensors) is as wide as `rank` in both directions.
void check_power_sgd_rank(const BucketPlan& plan, int rank);

/// One per rank; one thread at a time.
class PowerSgd {
 public:
  /// Sums over ranks in place, to the same bits on every rank; collective, called in the same order
  /// on every rank.
  using AllReduce = std::function<void(std::span<float>)>;

  /// `plan` has tensors. Tensors of one dimension, and those where r·(n + m) >= n·m, travel whole.
  /// Throws as check_power_sgd_rank. `seed` is the same on every rank.
  PowerSgd(const BucketPlan& plan, int rank, bool error_feedback, std::uint64_t seed);

  /// The bucket's gradient [sum over this rank's samples] becomes the approximation of the sum over
  /// ranks, equal on every rank. Two allreduces: of all P and what travels whole, then of all Q
  /// (none of zero elements). Values that are not finite spread over their matrix and leave no
  /// residual.
  void reduce(BucketId b, std::span<float> gradient, const AllReduce& allreduce);

  /// Floats that one reduce() of bucket b hands to its allreduces.
  [[nodiscard]] std::size_t travelling(BucketId b) const;
  [[nodiscard]] std::size_t residual_bytes() const noexcept { return residual_.size(); }
  /// Bytes of P, Q and scratch.
  [[nodiscard]] std::size_t staging_bytes() const noexcept { return q_.size() + first_.size(); }

 private:
  struct Matrix {
    std::size_t begin = 0;  ///< in the bucket
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::size_t p_begin = 0;  ///< in first_: r columns of `rows`, one after the other
    std::size_t q_begin = 0;  ///< in the bucket's part of q_: r columns of `columns`
  };
  struct Bucket {
    Range range;
    std::vector<Matrix> matrices;
    std::vector<Range> whole;  ///< in the bucket
    std::size_t p_floats = 0;  ///< of all P; the whole tensors follow
    std::size_t first_floats = 0;
    std::size_t q_begin = 0;
    std::size_t q_floats = 0;
  };

  void add_bucket(const BucketPlan& plan, BucketId b);
  void refill_q(const Matrix& matrix, std::span<float> q);
  void copy_whole(const Bucket& bucket, std::span<float> gradient, bool out);
  [[nodiscard]] std::span<float> q_of(const Bucket& bucket) const noexcept {
    return q_.as<float>().subspan(bucket.q_begin, bucket.q_floats);
  }

  std::size_t rank_;
  std::uint64_t seed_;
  std::uint64_t refills_ = 0;  ///< the same on every rank: Q is
  std::vector<Bucket> buckets_;
  Buffer q_;      ///< of all buckets, kept between steps
  Buffer first_;  ///< what the first allreduce of one bucket takes
  Buffer residual_;
};

}  // namespace paceline
