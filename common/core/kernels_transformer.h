// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a transformer besides its products (see kernels.h for what a functor is). Rows
// are positions of sequences, [rows, columns].
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"

namespace paceline::kernels {

/// e^x within 2 units in the last place, without a call, so that loops over it become vectors: x is
/// split into n·ln 2 + r, e^r is its Taylor polynomial of degree 7. Below -87 it stays at e^-87.
[[nodiscard]] PACELINE_HD inline float vector_exp(float x) noexcept {
  const float clamped = x < -87.0F ? -87.0F : (x > 88.0F ? 88.0F : x);
  const float n = std::nearbyint(clamped * 1.44269504F);
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return p * __builtin_bit_cast(float, (static_cast<std::int32_t>(n) + 127) << 23);
}

/// Row r: y = γ·(x − mean)·inverse + β, the statistics over its own columns (Ba, Kiros & Hinton
/// 2016), kept for the gradient.
struct RowNorm {
  const float* x;
  const float* gamma;
  const float* beta;
  float* y;
  float* mean;     ///< [rows], as inverse
  float* inverse;  ///< of the standard deviation
  std::int64_t columns;
  float epsilon = 1e-5F;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const float* from = x + row * columns;
    float* to = y + row * columns;
    float total = 0.0F;
#pragma omp simd reduction(+ : total)
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      total += from[c];
    }
    const float center = team.sum(total) / static_cast<float>(columns);
    float squares = 0.0F;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      squares += (from[c] - center) * (from[c] - center);
    }
    const float scale = 1.0F / std::sqrt(team.sum(squares) / static_cast<float>(columns) + epsilon);
    mean[row] = center;
    inverse[row] = scale;
#pragma omp simd
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      to[c] = (from[c] - center) * scale * gamma[c] + beta[c];
    }
  }
};

/// Row r, with x̂ = (x − mean)·inverse and g = γ·dy:
///   dx = inverse·(g − mean(g) − x̂·mean(g·x̂)) + addend.
struct RowNormGradient {
  const float* x;
  const float* dy;
  const float* gamma;
  const float* mean;
  const float* inverse;
  const float* addend;  ///< shaped like dx, may be it; null: nothing
  float* dx;
  std::int64_t columns;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * columns;
    const float center = mean[row];
    const float scale = inverse[row];
    float plain = 0.0F;
    float weighted = 0.0F;
#pragma omp simd reduction(+ : plain, weighted)
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      const float g = gamma[c] * dy[at + c];
      plain += g;
      weighted += g * ((x[at + c] - center) * scale);
    }
    plain = team.sum(plain) / static_cast<float>(columns);
    weighted = team.sum(weighted) / static_cast<float>(columns);
#pragma omp simd
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      const float centered = (x[at + c] - center) * scale;
      const float gradient = scale * (gamma[c] * dy[at + c] - plain - centered * weighted);
      dx[at + c] = addend != nullptr ? gradient + addend[at + c] : gradient;
    }
  }
};

/// Column tile: dγ = Σ_rows dy·x̂, dβ = Σ_rows dy; blocks of rows first, so that the rounding error
/// does not grow with all rows.
struct RowNormParameterGradient {
  const float* x;
  const float* dy;
  const float* mean;
  const float* inverse;
  float* d_gamma;
  float* d_beta;
  std::int64_t rows;
  std::int64_t columns;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t tile) const {
    constexpr std::int64_t kBlock = 128;
    const std::int64_t first = tile * kColumnTile;
    const std::int64_t width = columns - first < kColumnTile ? columns - first : kColumnTile;
    float total[kColumnTile] = {};
    float total_x[kColumnTile] = {};
    for (std::int64_t begin = 0; begin < rows; begin += kBlock) {
      const std::int64_t end = begin + kBlock < rows ? begin + kBlock : rows;
      float plain[kColumnTile] = {};
      float weighted[kColumnTile] = {};
      for (std::int64_t row = begin; row < end; ++row) {
        const float* d = dy + row * columns + first;
        const float* value = x + row * columns + first;
#pragma omp simd
        for (std::int64_t c = team.lane(); c < width; c += team.size()) {
          plain[c] += d[c];
          weighted[c] += d[c] * ((value[c] - mean[row]) * inverse[row]);
        }
      }
      for (std::int64_t c = team.lane(); c < width; c += team.size()) {
        total[c] += plain[c];
        total_x[c] += weighted[c];
      }
    }
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      d_beta[first + c] = total[c];
      d_gamma[first + c] = total_x[c];
    }
  }
};

/// x[r, c] += bias[c].
struct AddBias {
  float* x;
  const float* bias;
  std::int64_t columns;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    float* to = x + row * columns;
#pragma omp simd
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      to[c] += bias[c];
    }
  }
};

/// tanh(√(2/π)·(x + 0.044715·x³)), the inner part of GELU's form in GPT-2.
[[nodiscard]] PACELINE_HD inline float gelu_tanh(float x) noexcept {
  const float inner = 0.797884561F * (x + 0.044715F * x * x * x);
  return 1.0F - 2.0F / (vector_exp(2.0F * inner) + 1.0F);
}

/// y = x·(1 + tanh(…))/2 (Hendrycks & Gimpel 2016, the tanh form).
struct Gelu {
  const float* x;
  float* y;
  PACELINE_HD void operator()(std::int64_t i) const {
    y[i] = 0.5F * x[i] * (1.0F + gelu_tanh(x[i]));
  }
};

/// dy <- dy·GELU'(x).
struct GeluGradient {
  const float* x;
  float* dy;
  PACELINE_HD void operator()(std::int64_t i) const {
    const float t = gelu_tanh(x[i]);
    const float inner = 0.797884561F * (1.0F + 3.0F * 0.044715F * x[i] * x[i]);
    dy[i] *= 0.5F * (1.0F + t) + 0.5F * x[i] * (1.0F - t * t) * inner;
  }
};

/// Row r of [positions, positions]: the softmax of scale·s over columns 0..r, zero after them.
struct CausalSoftmax {
  float* s;
  float scale;
  std::int64_t positions;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    float* at = s + row * positions;
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (std::int64_t c = team.lane(); c <= row; c += team.size()) {
      largest = at[c] > largest ? at[c] : largest;
    }
    largest = team.max(largest);
    float total = 0.0F;
#pragma omp simd reduction(+ : total)
    for (std::int64_t c = team.lane(); c <= row; c += team.size()) {
      at[c] = vector_exp(scale * (at[c] - largest));
      total += at[c];
    }
    const float share = 1.0F / team.sum(total);
#pragma omp simd
    for (std::int64_t c = team.lane(); c < positions; c += team.size()) {
      at[c] = c <= row ? at[c] * share : 0.0F;
    }
  }
};

/// Row r: dp <- scale·p·(dp − Σ p·dp), the gradient at s of CausalSoftmax; zero where p is.
struct CausalSoftmaxGradient {
  const float* p;
  float* dp;
  float scale;
  std::int64_t positions;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const float* from = p + row * positions;
    float* to = dp + row * positions;
    float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t c = team.lane(); c < positions; c += team.size()) {
      dot += from[c] * to[c];
    }
    dot = team.sum(dot);
#pragma omp simd
    for (std::int64_t c = team.lane(); c < positions; c += team.size()) {
      to[c] = scale * from[c] * (to[c] - dot);
    }
  }
};

}  // namespace paceline::kernels
