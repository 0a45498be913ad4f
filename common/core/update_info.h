// SPDX-License-Identifier: Apache-2.0
// What one update of a range of weights is given, as plain data.
#pragma once

#include <cstdint>

namespace paceline {

/// One update: where the bits come from besides weights and gradients.
struct UpdateInfo {
  std::int64_t step = 0;  ///< updates this range has seen before; Adam's bias correction
  float lr = 0.0F;
  float gradient_scale = 1.0F;  ///< multiplies the gradient sum: 1 / samples
  float decay_scale = 1.0F;     ///< multiplies the specification's weight_decay
};

namespace kernels {

struct TensorPiece;
struct TensorSquares;

/// What rules with trust ratios (LARS, LAMB) work on where the ratios are the device's: pieces of
/// an arena (kernels_tensors.h).
struct TensorOperands {
  const TensorPiece* pieces = nullptr;  ///< null: the operands are one range
  TensorSquares* squares = nullptr;     ///< by piece; LAMB's first half writes them
  const float* ratios = nullptr;        ///< by tensor; null: LAMB's first half
};

/// Pointers to the first element of the range to update; `in` and `out` may be the same. With
/// pieces those to the arenas' first elements.
struct UpdateOperands {
  const float* in;
  float* out;
  const float* gradient;
  float* moment1;  ///< momentum, or Adam's first moment; null without
  float* moment2;  ///< Adam's second moment; null without
  TensorOperands tensors = {};
  const float* squares = nullptr;  ///< unless null the update is left out where it is inf or NaN
};

}  // namespace kernels

}  // namespace paceline
