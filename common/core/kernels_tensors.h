// SPDX-License-Identifier: Apache-2.0
// Trust ratios of whole tensors (LARS, LAMB) where the norms stay on the device: an arena's tensors
// cut into pieces, a team each, so that one launch serves tensors of every size. See kernels.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"

namespace paceline::kernels {

/// LARS: trust·|w| / (|g| + decay·|w|), 1 where a norm is 0.
[[nodiscard]] PACELINE_HD inline float lars_ratio_of(double trust, double decay, double weight_norm,
                                                     double gradient_norm) noexcept {
  if (weight_norm <= 0.0 || gradient_norm <= 0.0) {
    return 1.0F;
  }
  return static_cast<float>(trust * weight_norm / (gradient_norm + decay * weight_norm));
}

/// LAMB: |w| / |u|, 1 where a norm is 0.
[[nodiscard]] PACELINE_HD inline float lamb_ratio(double weight_norm,
                                                  double direction_norm) noexcept {
  return weight_norm > 0.0 && direction_norm > 0.0
             ? static_cast<float>(weight_norm / direction_norm)
             : 1.0F;
}

/// Most elements of a piece.
inline constexpr std::int64_t kPieceElements = 2048;

/// Part of one tensor.
struct TensorPiece {
  std::int64_t begin;  ///< in the arena
  std::int64_t state;  ///< in a moment
  std::int32_t count;
  std::int32_t tensor;
  std::int32_t scaled;  ///< not 0: the tensor has a trust ratio and is decayed
  std::int32_t counts;  ///< not 0: in the norms; what several ranks own counts for one of them
};

/// The pieces of one tensor: a range of all.
struct PieceRange {
  std::int64_t begin;
  std::int64_t end;
};

struct TensorSquares {
  double weights = 0.0;
  double gradient = 0.0;  ///< LARS: of the gradient sum; LAMB: of the direction

  PACELINE_HD void add(float weight, float other) noexcept {
    weights += static_cast<double>(weight) * static_cast<double>(weight);
    gradient += static_cast<double>(other) * static_cast<double>(other);
  }
};

/// to = the sum of what the team's lanes have.
template <typename Team>
PACELINE_HD void write_sum(const Team& team, const TensorSquares& own, TensorSquares& to) {
  const TensorSquares sum{team.sum(own.weights), team.sum(own.gradient)};
  if (team.lane() == 0) {
    to = sum;
  }
}

/// Row = piece: Σ w² and Σ g² in double.
struct SquaresOfPieces {
  const TensorPiece* pieces;
  const float* weights;
  const float* gradients;
  TensorSquares* squares;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const TensorPiece piece = pieces[row];
    TensorSquares own;
    if (piece.counts != 0) {
      for (std::int64_t i = team.lane(); i < piece.count; i += team.size()) {
        own.add(weights[piece.begin + i], gradients[piece.begin + i]);
      }
    }
    write_sum(team, own, squares[row]);
  }
};

/// Row = tensor: the sums over its pieces.
struct SquaresOfTensors {
  const TensorSquares* of_pieces;
  const PieceRange* ranges;
  TensorSquares* squares;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const PieceRange range = ranges[row];
    TensorSquares own;
    for (std::int64_t i = range.begin + team.lane(); i < range.end; i += team.size()) {
      own.weights += of_pieces[i].weights;
      own.gradient += of_pieces[i].gradient;
    }
    write_sum(team, own, squares[row]);
  }
};

/// Element = tensor: its trust ratio from all ranks' squares, added in rank order.
struct TrustRatios {
  const TensorSquares* of_ranks;  ///< [ranks, tensors]
  std::int64_t ranks;
  std::int64_t tensors;
  bool lamb;
  double scale;  ///< LARS: multiplies the gradient sum
  double trust;
  double decay;
  float* ratios;

  PACELINE_HD void operator()(std::int64_t tensor) const {
    double weights = 0.0;
    double gradient = 0.0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      weights += of_ranks[rank * tensors + tensor].weights;
      gradient += of_ranks[rank * tensors + tensor].gradient;
    }
    ratios[tensor] =
        lamb ? lamb_ratio(std::sqrt(weights), std::sqrt(gradient))
             : lars_ratio_of(trust, decay, std::sqrt(weights), std::sqrt(gradient) * scale);
  }
};

}  // namespace paceline::kernels
