// SPDX-License-Identifier: Apache-2.0
// LARS's and LAMB's trust ratios on a GPU: norms of tensors and their ratios in device memory,
// which the host never waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/core/gpu/gpu.h"
#include "common/core/kernels_tensors.h"
#include "common/core/update_info.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/optimizer_spec.h"

namespace paceline {

/// The ranges of each bucket that are this rank's, relative to the arena.
using OwnRanges = std::vector<std::vector<Range>>;

/// Where norms of tensors are sums over ranks: whose parts are which.
struct TensorShares {
  std::vector<Range> counted;  ///< own parts that this rank adds; each element is one rank's
  int rank = 0;
  int ranks = 1;  ///< that own different parts; 1: this rank owns all
};

/// The pieces of a rank's own parts of all tensors, and what is computed from them. Queues on
/// `stream`; both outlive it.
class GpuTrustRatios {
 public:
  /// Throws Error where `plan` has no tensors.
  GpuTrustRatios(Gpu& gpu, GpuStream& stream, const OptimizerSpec& spec, const BucketPlan& plan,
                 const OwnRanges& own, const TensorShares& shares);

  /// Of bucket b.
  [[nodiscard]] std::int64_t pieces(BucketId b) const {
    const kernels::PieceRange& range = of_buckets_.at(static_cast<std::size_t>(b));
    return range.end - range.begin;
  }
  /// Of bucket b's pieces; without ratios for LAMB's first half.
  [[nodiscard]] kernels::TensorOperands operands(BucketId b, bool with_ratios) const;

  /// LARS: this rank's squares of its pieces (LAMB's come with the directions).
  void square_pieces(std::span<const float> weights, std::span<const float> gradients);
  /// This rank's block of squares(), from its pieces'.
  void square_tensors();
  /// By rank, then by tensor; device memory. Between square_tensors() and find() the other ranks'
  /// blocks have to be filled in.
  [[nodiscard]] kernels::TensorSquares* squares() const noexcept {
    return squares_.as<kernels::TensorSquares>();
  }
  [[nodiscard]] std::size_t tensors() const noexcept { return tensors_; }
  /// The ratios, for gradient sums times `scale`.
  void find(float scale);

  [[nodiscard]] std::size_t bytes() const noexcept {
    return table_.size() + piece_squares_.size() + squares_.size() + ratios_.size();
  }

 private:
  /// Of every tensor.
  std::vector<kernels::PieceRange> cut(const BucketPlan& plan, const OwnRanges& own,
                                       const TensorShares& shares,
                                       std::vector<kernels::TensorPiece>& pieces);
  void take_memory(const std::vector<kernels::TensorPiece>& pieces,
                   const std::vector<kernels::PieceRange>& of_tensors);
  [[nodiscard]] kernels::PieceRange* ranges() const noexcept {
    return reinterpret_cast<kernels::PieceRange*>(table_.as<kernels::TensorPiece>() + pieces_);
  }

  Gpu& gpu_;
  GpuStream& stream_;
  OptimizerSpec spec_;
  std::int64_t rank_;
  std::int64_t ranks_;
  std::size_t tensors_;
  std::int64_t pieces_ = 0;
  std::vector<kernels::PieceRange> of_buckets_;
  GpuMemory table_;  // pieces, then the range of each tensor
  GpuMemory piece_squares_;
  GpuMemory squares_;
  GpuMemory ratios_;
};

}  // namespace paceline
