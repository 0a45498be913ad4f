// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the norms (see kernels.h for what a functor is). A batch [rows, columns] is cut
// into slabs of `rows` rows each: one slab for BatchNorm, one per sample for GroupNorm. Statistics
// are first taken per slab and channel, then combined over what a norm shares them: ranks or the
// channels of a group. Sums run in fp32 within blocks of rows and in fp64 beyond.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"

namespace paceline::kernels {

inline constexpr std::int64_t kNormBlockRows = 128;

/// Tiles of the functors below that take a unit = slab · norm_tiles + tile.
[[nodiscard]] PACELINE_HD constexpr std::int64_t norm_tiles(std::int64_t columns) noexcept {
  return (columns + kColumnTile - 1) / kColumnTile;
}

/// Without the division, which costs as much as a narrow row, where there is one slab.
[[nodiscard]] PACELINE_HD constexpr std::int64_t slab_of(std::int64_t row,
                                                         std::int64_t rows) noexcept {
  return row < rows ? 0 : row / rows;
}

/// mean[slab, c] = Σ x / rows,  m2[slab, c] = Σ (x − mean)²: a block's own mean and sum of squares
/// are merged into the total (Chan, Golub & LeVeque 1979), so that one pass over memory suffices.
struct ChannelMoments {
  const float* x;
  double* mean;
  double* m2;
  std::int64_t rows;
  std::int64_t columns;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    const std::int64_t slab = unit / norm_tiles(columns);
    const std::int64_t first = unit % norm_tiles(columns) * kColumnTile;
    const std::int64_t width = columns - first < kColumnTile ? columns - first : kColumnTile;
    double* total_mean = mean + slab * columns + first;
    double* total_m2 = m2 + slab * columns + first;
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      total_mean[c] = 0.0;
      total_m2[c] = 0.0;
    }
    const float* at = x + slab * rows * columns + first;
    for (std::int64_t begin = 0; begin < rows; begin += kNormBlockRows) {
      const std::int64_t left = rows - begin;
      const std::int64_t n = left < kNormBlockRows ? left : kNormBlockRows;
      merge(team, at + begin * columns, n, width, static_cast<double>(begin), total_mean, total_m2);
    }
  }

 private:
  template <typename Team>
  PACELINE_HD void merge(const Team& team, const float* at, std::int64_t n, std::int64_t width,
                         double before, double* total_mean, double* total_m2) const {
    float center[kColumnTile] = {};
    float squares[kColumnTile] = {};
    for (std::int64_t row = 0; row < n; ++row) {
#pragma omp simd
      for (std::int64_t c = team.lane(); c < width; c += team.size()) {
        center[c] += at[row * columns + c];
      }
    }
    const float inverse = 1.0F / static_cast<float>(n);
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      center[c] *= inverse;
    }
    for (std::int64_t row = 0; row < n; ++row) {
#pragma omp simd
      for (std::int64_t c = team.lane(); c < width; c += team.size()) {
        const float distance = at[row * columns + c] - center[c];
        squares[c] += distance * distance;
      }
    }
    const double count = static_cast<double>(n);
    const double share = count / (before + count);
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      const double distance = static_cast<double>(center[c]) - total_mean[c];
      total_mean[c] += distance * share;
      total_m2[c] += static_cast<double>(squares[c]) + distance * distance * before * share;
    }
  }
};

/// Slab and group i = slab · groups + group: combines its channels' moments to the mean and
/// 1/√(variance + epsilon) of all its elements, written for each of its channels.
struct GroupMoments {
  const double* channel_mean;
  const double* channel_m2;
  float* mean;
  float* inverse;  ///< of the standard deviation
  std::int64_t rows;
  std::int64_t width;  ///< channels of a group
  double epsilon;

  PACELINE_HD void operator()(std::int64_t i) const {
    double center = 0.0;
    for (std::int64_t c = i * width; c < (i + 1) * width; ++c) {
      center += channel_mean[c];
    }
    center /= static_cast<double>(width);
    double squares = 0.0;
    for (std::int64_t c = i * width; c < (i + 1) * width; ++c) {
      const double distance = channel_mean[c] - center;
      squares += channel_m2[c] + static_cast<double>(rows) * distance * distance;
    }
    const double variance = squares / static_cast<double>(rows * width);
    for (std::int64_t c = i * width; c < (i + 1) * width; ++c) {
      mean[c] = static_cast<float>(center);
      inverse[c] = static_cast<float>(1.0 / std::sqrt(variance + epsilon));
    }
  }
};

/// Row r: y = γ·(x − mean)·inverse + β (+ addend), then a ReLU if asked for.
struct Normalise {
  const float* x;
  float* y;
  const float* mean;     ///< [slab, column], as inverse
  const float* inverse;  ///< of the standard deviation
  const float* gamma;
  const float* beta;
  std::int64_t rows;  ///< of a slab
  std::int64_t columns;
  bool relu;
  const float* addend = nullptr;  ///< shaped like y; null: nothing

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t slab = slab_of(row, rows) * columns;
    const float* from = x + row * columns;
    float* to = y + row * columns;
    const float floor = relu ? 0.0F : -INFINITY;
    if (addend != nullptr) {
      const float* more = addend + row * columns;
#pragma omp simd
      for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
        const float value =
            (from[c] - mean[slab + c]) * (inverse[slab + c] * gamma[c]) + beta[c] + more[c];
        to[c] = value < floor ? floor : value;  // keeps NaN
      }
      return;
    }
#pragma omp simd
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      const float value = (from[c] - mean[slab + c]) * (inverse[slab + c] * gamma[c]) + beta[c];
      to[c] = value < floor ? floor : value;  // keeps NaN
    }
  }
};

/// Per slab and channel, with x̂ = (x − mean)·inverse:  dy <- dy where y > 0, else 0 (not without
/// `y`);  sum_dy = Σ dy,  sum_dy_x = Σ dy·x̂.
struct NormGradientSums {
  const float* x;
  const float* y;  ///< the ReLU's output; null: no ReLU, or masked already
  float* dy;
  const float* mean;
  const float* inverse;
  double* sum_dy;
  double* sum_dy_x;
  std::int64_t rows;
  std::int64_t columns;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    const std::int64_t slab = unit / norm_tiles(columns);
    const std::int64_t first = unit % norm_tiles(columns) * kColumnTile;
    const std::int64_t width = columns - first < kColumnTile ? columns - first : kColumnTile;
    const std::int64_t channel = slab * columns + first;
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      sum_dy[channel + c] = 0.0;
      sum_dy_x[channel + c] = 0.0;
    }
    for (std::int64_t begin = 0; begin < rows; begin += kNormBlockRows) {
      const std::int64_t left = rows - begin;
      const std::int64_t n = left < kNormBlockRows ? left : kNormBlockRows;
      block(team, (slab * rows + begin) * columns + first, n, channel, width);
    }
  }

 private:
  template <typename Team>
  PACELINE_HD void block(const Team& team, std::int64_t start, std::int64_t n, std::int64_t channel,
                         std::int64_t width) const {
    float plain[kColumnTile] = {};
    float weighted[kColumnTile] = {};
    for (std::int64_t row = 0; row < n; ++row) {
      const std::int64_t at = start + row * columns;
      if (y != nullptr) {
#pragma omp simd
        for (std::int64_t c = team.lane(); c < width; c += team.size()) {
          dy[at + c] = y[at + c] > 0.0F ? dy[at + c] : 0.0F;
        }
      }
#pragma omp simd
      for (std::int64_t c = team.lane(); c < width; c += team.size()) {
        const float d = dy[at + c];
        plain[c] += d;
        weighted[c] += d * ((x[at + c] - mean[channel + c]) * inverse[channel + c]);
      }
    }
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      sum_dy[channel + c] += static_cast<double>(plain[c]);
      sum_dy_x[channel + c] += static_cast<double>(weighted[c]);
    }
  }
};

/// Channel c: dβ = Σ_slabs sum_dy, dγ = Σ_slabs sum_dy_x.
struct NormParameterGradient {
  const double* sum_dy;
  const double* sum_dy_x;
  float* d_gamma;
  float* d_beta;
  std::int64_t slabs;
  std::int64_t columns;

  PACELINE_HD void operator()(std::int64_t c) const {
    double plain = 0.0;
    double weighted = 0.0;
    for (std::int64_t slab = 0; slab < slabs; ++slab) {
      plain += sum_dy[slab * columns + c];
      weighted += sum_dy_x[slab * columns + c];
    }
    d_beta[c] = static_cast<float>(plain);
    d_gamma[c] = static_cast<float>(weighted);
  }
};

/// Slab and group i: the means of γ·dy and γ·dy·x̂ over its elements, for each of its channels.
struct GroupGradientMeans {
  const double* sum_dy;
  const double* sum_dy_x;
  const float* gamma;
  float* mean_dy;
  float* mean_dy_x;
  std::int64_t rows;
  std::int64_t width;
  std::int64_t groups;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float* scale = gamma + i % groups * width;
    const std::int64_t first = i * width;
    double plain = 0.0;
    double weighted = 0.0;
    for (std::int64_t c = 0; c < width; ++c) {
      plain += static_cast<double>(scale[c]) * sum_dy[first + c];
      weighted += static_cast<double>(scale[c]) * sum_dy_x[first + c];
    }
    const double count = static_cast<double>(rows * width);
    for (std::int64_t c = 0; c < width; ++c) {
      mean_dy[first + c] = static_cast<float>(plain / count);
      mean_dy_x[first + c] = static_cast<float>(weighted / count);
    }
  }
};

/// Row r: dx = inverse·(γ·dy − mean_dy − x̂·mean_dy_x), the gradient through the statistics
/// included.
struct NormInputGradient {
  const float* x;
  const float* dy;
  float* dx;
  const float* mean;
  const float* inverse;
  const float* gamma;
  const float* mean_dy;
  const float* mean_dy_x;
  std::int64_t rows;
  std::int64_t columns;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t slab = slab_of(row, rows) * columns;
    const std::int64_t at = row * columns;
#pragma omp simd
    for (std::int64_t c = team.lane(); c < columns; c += team.size()) {
      const std::int64_t s = slab + c;
      const float centered = (x[at + c] - mean[s]) * inverse[s];
      dx[at + c] = inverse[s] * (gamma[c] * dy[at + c] - mean_dy[s] - centered * mean_dy_x[s]);
    }
  }
};

}  // namespace paceline::kernels
