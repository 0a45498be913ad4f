// SPDX-License-Identifier: Apache-2.0
#include "ps/delay_compensation.h"

#include <cmath>
#include <cstddef>

namespace paceline {

namespace {
constexpr float kMeanSquareFloor = 1e-7F;  // the paper's ε
}

float paper_lambda(DelayCompensation::Variant variant) noexcept {
  return variant == DelayCompensation::Variant::adaptive ? 2.0F : 0.04F;
}

void compensate(const DelayCompensation& rule, const StaleGradient& in, std::span<float> out) {
  const float* sum = in.sum.data();
  const float* now = in.now.data();
  const float* then = in.then.data();
  float* to = out.data();
  const float scale = in.scale;
  const float lambda = rule.lambda;
  const std::size_t n = out.size();
  if (rule.variant == DelayCompensation::Variant::constant) {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) {
      to[i] = sum[i] + lambda * (scale * sum[i]) * sum[i] * (now[i] - then[i]);
    }
    return;
  }
  float* square = in.mean_square.data();
  const float keep = rule.mean_square;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    const float g = scale * sum[i];
    square[i] = keep * square[i] + (1.0F - keep) * g * g;
    const float adapted = lambda / std::sqrt(square[i] + kMeanSquareFloor);
    to[i] = sum[i] + adapted * g * sum[i] * (now[i] - then[i]);
  }
}

}  // namespace paceline
