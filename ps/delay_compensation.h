// SPDX-License-Identifier: Apache-2.0
// Delay compensation of stale gradients, DC-ASGD (Zheng et al. 2017, "Asynchronous Stochastic
// Gradient Descent with Delay Compensation"): the gradient g that a worker computed on w_bak is
// moved to the server's w_now by a first-order Taylor step whose Hessian is λ g⊙g:
//     g + λ g⊙g⊙(w_now − w_bak).
#pragma once

#include <cstdint>
#include <span>

namespace paceline {

struct DelayCompensation {
  enum class Variant : std::uint8_t {
    none,
    constant,  ///< DC-ASGD-c: λ as it is
    adaptive,  ///< DC-ASGD-a: λ / sqrt(MeanSquare + 1e-7), by element
  };
  Variant variant = Variant::none;
  float lambda = 0.0F;
  float mean_square = 0.95F;  ///< adaptive: m of MeanSquare = m·MeanSquare + (1−m)·g⊙g

  [[nodiscard]] bool on() const noexcept { return variant != Variant::none; }
  bool operator==(const DelayCompensation&) const = default;
};

/// The paper's λ for a variant: 0.04 (constant), 2 (adaptive).
[[nodiscard]] float paper_lambda(DelayCompensation::Variant variant) noexcept;

/// A range of one push. All spans have the same length, but `mean_square`, which only the adaptive
/// variant has and advances.
struct StaleGradient {
  std::span<const float> sum;   ///< over the worker's samples
  float scale = 1.0F;           ///< 1 / samples: g = scale·sum
  std::span<const float> now;   ///< the weights that the update starts from
  std::span<const float> then;  ///< those that the worker computed on
  std::span<float> mean_square;
};

/// out = the compensated gradient, again as a sum: `out`·scale is g + λ g⊙g⊙(now − then). `out`
/// overlaps no span of `in`.
void compensate(const DelayCompensation& rule, const StaleGradient& in, std::span<float> out);

}  // namespace paceline
