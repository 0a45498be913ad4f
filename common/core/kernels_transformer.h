// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a transformer besides its products (see kernels.h for what a functor is). Rows
// are positions of sequences, [rows, columns].
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

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
template <typename T>
struct BasicRowNorm {
  const T* x;
  const float* gamma;
  const float* beta;
  T* y;
  float* mean;     ///< [rows], as inverse
  float* inverse;  ///< of the standard deviation
  std::int64_t columns;
  float epsilon = 1e-5F;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const T* from = x + row * columns;
    T* to = y + row * columns;
    float total = 0.0F;
#pragma omp simd reduction(+ : total)
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      total += static_cast<float>(from[c]);
    }
    const float center = team.sum(total) / static_cast<float>(columns);
    float squares = 0.0F;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      const float distance = static_cast<float>(from[c]) - center;
      squares += distance * distance;
    }
    const float scale = 1.0F / std::sqrt(team.sum(squares) / static_cast<float>(columns) + epsilon);
    if (team.lane() == 0) {
      mean[row] = center;
      inverse[row] = scale;
    }
#pragma omp simd
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      to[c] = static_cast<T>((static_cast<float>(from[c]) - center) * scale * gamma[c] + beta[c]);
    }
  }
};
using RowNorm = BasicRowNorm<float>;

/// Row r, with x̂ = (x − mean)·inverse and g = γ·dy:
///   dx = inverse·(g − mean(g) − x̂·mean(g·x̂)) + addend.
template <typename T>
struct BasicRowNormGradient {
  const T* x;
  const T* dy;
  const float* gamma;
  const float* mean;
  const float* inverse;
  const T* addend;  ///< shaped like dx, may be it; null: nothing
  T* dx;
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
      const float g = gamma[c] * static_cast<float>(dy[at + c]);
      plain += g;
      weighted += g * ((static_cast<float>(x[at + c]) - center) * scale);
    }
    plain = team.sum(plain) / static_cast<float>(columns);
    weighted = team.sum(weighted) / static_cast<float>(columns);
#pragma omp simd
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      const float centered = (static_cast<float>(x[at + c]) - center) * scale;
      const float g = gamma[c] * static_cast<float>(dy[at + c]);
      const float gradient = scale * (g - plain - centered * weighted);
      dx[at + c] = static_cast<T>(addend != nullptr ? gradient + static_cast<float>(addend[at + c])
                                                    : gradient);
    }
  }
};
using RowNormGradient = BasicRowNormGradient<float>;

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
template <typename T>
struct BasicGelu {
  const T* x;
  T* y;
  PACELINE_HD void operator()(std::int64_t i) const {
    const auto value = static_cast<float>(x[i]);
    y[i] = static_cast<T>(0.5F * value * (1.0F + gelu_tanh(value)));
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(x), writes(y));
  }
};
using Gelu = BasicGelu<float>;

/// dy <- dy·GELU'(x).
template <typename T>
struct BasicGeluGradient {
  const T* x;
  T* dy;
  PACELINE_HD void operator()(std::int64_t i) const {
    const auto value = static_cast<float>(x[i]);
    const float t = gelu_tanh(value);
    const float inner = 0.797884561F * (1.0F + 3.0F * 0.044715F * value * value);
    const float slope = 0.5F * (1.0F + t) + 0.5F * value * (1.0F - t * t) * inner;
    dy[i] = static_cast<T>(static_cast<float>(dy[i]) * slope);
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(x), changes(dy));
  }
};
using GeluGradient = BasicGeluGradient<float>;

/// Row r of matrices [positions, positions] one after the other: the softmax of scale·s over the
/// columns up to the row's own place in its matrix, zero after them.
template <typename T>
struct BasicCausalSoftmax {
  T* s;
  float scale;
  std::int64_t positions;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    T* at = s + row * positions;
    const std::int64_t own = row % positions;
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (std::int64_t c = team.lane(); c <= own; c += team.size()) {
      const auto value = static_cast<float>(at[c]);
      largest = value > largest ? value : largest;
    }
    largest = team.max(largest);
    float total = 0.0F;
#pragma omp simd reduction(+ : total)
    for (std::int64_t c = team.lane(); c <= own; c += team.size()) {
      const float part = vector_exp(scale * (static_cast<float>(at[c]) - largest));
      if constexpr (kKeepsParts) {
        at[c] = part;
      }
      total += part;
    }
    const float share = 1.0F / team.sum(total);
#pragma omp simd
    for (std::int64_t c = team.lane(); c < positions; c += team.size()) {
      at[c] = static_cast<T>(c <= own ? part_of(at[c], largest) * share : 0.0F);
    }
  }

 private:
  /// In 16 bits the parts would be rounded twice; there they are computed twice.
  static constexpr bool kKeepsParts = std::is_same_v<T, float>;
  [[nodiscard]] PACELINE_HD float part_of(T value, float largest) const {
    if constexpr (kKeepsParts) {
      return value;
    } else {
      return vector_exp(scale * (static_cast<float>(value) - largest));
    }
  }
};
using CausalSoftmax = BasicCausalSoftmax<float>;

/// Row r: dp <- scale·p·(dp − Σ p·dp), the gradient at s of CausalSoftmax; zero where p is.
template <typename T>
struct BasicCausalSoftmaxGradient {
  const T* p;
  T* dp;
  float scale;
  std::int64_t positions;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const T* from = p + row * positions;
    T* to = dp + row * positions;
    float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t c = team.lane(); c < positions; c += team.size()) {
      dot += static_cast<float>(from[c]) * static_cast<float>(to[c]);
    }
    dot = team.sum(dot);
#pragma omp simd
    for (std::int64_t c = team.lane(); c < positions; c += team.size()) {
      to[c] =
          static_cast<T>(scale * static_cast<float>(from[c]) * (static_cast<float>(to[c]) - dot));
    }
  }
};
using CausalSoftmaxGradient = BasicCausalSoftmaxGradient<float>;

}  // namespace paceline::kernels
