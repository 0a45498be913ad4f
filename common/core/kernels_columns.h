// SPDX-License-Identifier: Apache-2.0
// The norms and bias gradients for a GPU (kernels_norm.h and kernels.h have the CPU's, which keep
// tiles of columns in vectors). Here a lane owns a column and runs down a part of the rows, so that
// neighbouring lanes read neighbouring elements and a warp's state is a few registers a lane. A
// second, small launch merges the parts. See kernels.h for what a functor and T are.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"

namespace paceline::kernels {

inline constexpr std::int64_t kLaneColumns = 32;

/// What one warp takes of a batch.
struct ColumnRange {
  std::int64_t slab;
  std::int64_t place;  ///< slab · parts + part
  std::int64_t first;  ///< column
  std::int64_t last;   ///< beyond it
  std::int64_t begin;  ///< row of the batch
  std::int64_t end;
};

/// A batch [slabs · rows, columns], the rows of each slab cut into parts, the columns into tiles.
struct ColumnParts {
  std::int64_t slabs;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t parts;  ///< of a slab

  [[nodiscard]] PACELINE_HD std::int64_t tiles() const noexcept {
    return (columns + kLaneColumns - 1) / kLaneColumns;
  }
  [[nodiscard]] PACELINE_HD std::int64_t units() const noexcept { return slabs * parts * tiles(); }
  [[nodiscard]] PACELINE_HD std::int64_t height() const noexcept {
    return (rows + parts - 1) / parts;
  }
  /// Rows of a part, 0 where the ones before took them all.
  [[nodiscard]] PACELINE_HD std::int64_t rows_of(std::int64_t part) const noexcept {
    const std::int64_t left = rows - part * height();
    const std::int64_t most = height() < left ? height() : left;
    return most > 0 ? most : 0;
  }
  [[nodiscard]] PACELINE_HD ColumnRange range(std::int64_t unit) const noexcept {
    const std::int64_t place = unit / tiles();
    const std::int64_t first = unit % tiles() * kLaneColumns;
    const std::int64_t last = first + kLaneColumns < columns ? first + kLaneColumns : columns;
    const std::int64_t slab = place / parts;
    const std::int64_t part = place % parts;
    const std::int64_t begin = slab * rows + part * height();
    return {slab, place, first, last, begin, begin + rows_of(part)};
  }
};

/// Mean and Σ (x − mean)² of a column's first `count` elements, more merged in (Chan, Golub &
/// LeVeque 1979).
struct RunningMoments {
  double mean = 0.0;
  double m2 = 0.0;
  double count = 0.0;
  PACELINE_HD void merge(double other_mean, double other_m2, double other_count) noexcept {
    const double share = other_count / (count + other_count);
    const double distance = other_mean - mean;
    mean += distance * share;
    m2 += other_m2 + distance * distance * count * share;
    count += other_count;
  }
};

/// Of every part and column: mean = Σ x / rows, m2 = Σ (x − mean)². Blocks of rows are summed in
/// fp32, as distances from their first element, so that one pass suffices.
template <typename T>
struct ColumnMoments {
  const T* x;
  double* mean;  ///< [slab · parts + part, column]
  double* m2;
  ColumnParts cut;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    constexpr std::int64_t kBlock = 64;
    const ColumnRange range = cut.range(unit);
    for (std::int64_t c = range.first + team.lane(); c < range.last; c += team.size()) {
      RunningMoments total;
      for (std::int64_t begin = range.begin; begin < range.end; begin += kBlock) {
        const std::int64_t end = begin + kBlock < range.end ? begin + kBlock : range.end;
        const auto origin = static_cast<float>(x[begin * cut.columns + c]);
        float plain = 0.0F;
        float squares = 0.0F;
        for (std::int64_t row = begin; row < end; ++row) {
          const float distance = static_cast<float>(x[row * cut.columns + c]) - origin;
          plain += distance;
          squares += distance * distance;
        }
        const auto count = static_cast<double>(end - begin);
        const double shift = static_cast<double>(plain) / count;
        const double around = static_cast<double>(squares) - static_cast<double>(plain) * shift;
        total.merge(static_cast<double>(origin) + shift, around > 0.0 ? around : 0.0, count);
      }
      mean[range.place * cut.columns + c] = total.mean;
      m2[range.place * cut.columns + c] = total.m2;
    }
  }
};

/// Row = slab · columns + column: the moments of all parts.
struct MergedMoments {
  const double* part_mean;
  const double* part_m2;
  double* mean;
  double* m2;
  ColumnParts cut;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t first = row / cut.columns * cut.parts * cut.columns + row % cut.columns;
    const double origin = part_mean[first];
    double shift = 0.0;
    for (std::int64_t part = team.lane(); part < cut.parts; part += team.size()) {
      const auto count = static_cast<double>(cut.rows_of(part));
      shift += count * (part_mean[first + part * cut.columns] - origin);
    }
    const double center = origin + team.sum(shift) / static_cast<double>(cut.rows);
    double squares = 0.0;
    for (std::int64_t part = team.lane(); part < cut.parts; part += team.size()) {
      const double distance = part_mean[first + part * cut.columns] - center;
      const auto count = static_cast<double>(cut.rows_of(part));
      squares += part_m2[first + part * cut.columns] + count * distance * distance;
    }
    squares = team.sum(squares);
    if (team.lane() == 0) {
      mean[row] = center;
      m2[row] = squares;
    }
  }
};

/// value <- (1 − momentum)·value + momentum·batch
PACELINE_HD inline void move_average(float& value, double batch, double momentum) {
  value = static_cast<float>((1.0 - momentum) * static_cast<double>(value) + momentum * batch);
}

/// Channel c of BatchNorm: what Normalise takes, and the running statistics.
struct BatchStatistics {
  const double* batch_mean;
  const double* batch_m2;
  float* mean;
  float* inverse;  ///< of the standard deviation
  float* running;  ///< means, then variances, [2, columns]
  std::int64_t columns;
  double count;  ///< elements of a channel
  double momentum;
  double epsilon;

  PACELINE_HD void operator()(std::int64_t c) const {
    mean[c] = static_cast<float>(batch_mean[c]);
    inverse[c] = static_cast<float>(1.0 / std::sqrt(batch_m2[c] / count + epsilon));
    move_average(running[c], batch_mean[c], momentum);
    if (count > 1.0) {
      move_average(running[columns + c], batch_m2[c] / (count - 1.0), momentum);
    }
  }
};

/// Channel c: the running statistics, from what BatchStatistics makes of a batch.
struct RunningStatistics {
  const float* mean;
  const float* inverse;
  float* running;  ///< means, then variances, [2, columns]
  std::int64_t columns;
  double count;  ///< elements of a channel
  double momentum;
  double epsilon;

  PACELINE_HD void operator()(std::int64_t c) const {
    move_average(running[c], static_cast<double>(mean[c]), momentum);
    if (count > 1.0) {
      const auto scale = static_cast<double>(inverse[c]);
      const double variance = 1.0 / (scale * scale) - epsilon;
      const double unbiased = count / (count - 1.0) * (variance < 0.0 ? 0.0 : variance);
      move_average(running[columns + c], unbiased, momentum);  // keeps NaN
    }
  }
};

/// Channel c in evaluation: the running statistics.
struct KeptStatistics {
  const float* running;
  float* mean;
  float* inverse;
  std::int64_t columns;
  double epsilon;

  PACELINE_HD void operator()(std::int64_t c) const {
    mean[c] = running[c];
    inverse[c] =
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(running[columns + c]) + epsilon));
  }
};

/// y = γ·(x − mean)·inverse + β (+ addend), then a ReLU if asked for.
template <typename T>
struct ColumnNormalise {
  const T* x;
  T* y;
  const T* addend;    ///< shaped like y; null: nothing
  const float* mean;  ///< [slab, column], as inverse
  const float* inverse;
  const float* gamma;
  const float* beta;
  ColumnParts cut;
  bool relu;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    const ColumnRange range = cut.range(unit);
    const float floor = relu ? 0.0F : -INFINITY;
    for (std::int64_t c = range.first + team.lane(); c < range.last; c += team.size()) {
      const std::int64_t s = range.slab * cut.columns + c;
      const float center = mean[s];
      const float factor = inverse[s] * gamma[c];
      const float shift = beta[c];
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const std::int64_t at = row * cut.columns + c;
        float value = (static_cast<float>(x[at]) - center) * factor + shift;
        value += addend != nullptr ? static_cast<float>(addend[at]) : 0.0F;
        y[at] = static_cast<T>(value < floor ? floor : value);  // keeps NaN
      }
    }
  }
};

/// dy[at], made 0 first where there is a ReLU's output y that is not above 0.
template <typename T>
[[nodiscard]] PACELINE_HD float masked_gradient(const T* y, T* dy, std::int64_t at) {
  if (y != nullptr && !(static_cast<float>(y[at]) > 0.0F)) {
    dy[at] = static_cast<T>(0.0F);
  }
  return static_cast<float>(dy[at]);
}

/// dy[i] <- 0 where the ReLU's output y[i] is not above 0
template <typename T>
struct MaskedByRelu {
  const T* y;
  T* dy;

  PACELINE_HD void operator()(std::int64_t i) const {
    static_cast<void>(masked_gradient(y, dy, i));
  }
};

/// Of every part and column, with x̂ = (x − mean)·inverse: dy <- dy where y > 0, else 0 (not without
/// `y`);  sum_dy = Σ dy,  sum_dy_x = Σ dy·x̂.
template <typename T>
struct ColumnGradientSums {
  const T* x;
  const T* y;  ///< the ReLU's output; null: no ReLU, or masked already
  T* dy;
  const float* mean;
  const float* inverse;
  double* sum_dy;
  double* sum_dy_x;
  ColumnParts cut;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    constexpr std::int64_t kBlock = 64;
    const ColumnRange range = cut.range(unit);
    for (std::int64_t c = range.first + team.lane(); c < range.last; c += team.size()) {
      const std::int64_t s = range.slab * cut.columns + c;
      double total = 0.0;
      double total_x = 0.0;
      for (std::int64_t begin = range.begin; begin < range.end; begin += kBlock) {
        const std::int64_t end = begin + kBlock < range.end ? begin + kBlock : range.end;
        float plain = 0.0F;
        float weighted = 0.0F;
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t at = row * cut.columns + c;
          const float d = masked_gradient(y, dy, at);
          plain += d;
          weighted += d * ((static_cast<float>(x[at]) - mean[s]) * inverse[s]);
        }
        total += static_cast<double>(plain);
        total_x += static_cast<double>(weighted);
      }
      sum_dy[range.place * cut.columns + c] = total;
      sum_dy_x[range.place * cut.columns + c] = total_x;
    }
  }
};

/// Row = slab · columns + column: two sums over all parts.
struct MergedSums {
  const double* part_first;
  const double* part_second;
  double* first;
  double* second;
  ColumnParts cut;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row / cut.columns * cut.parts * cut.columns + row % cut.columns;
    double one = 0.0;
    double other = 0.0;
    for (std::int64_t part = team.lane(); part < cut.parts; part += team.size()) {
      one += part_first[at + part * cut.columns];
      other += part_second[at + part * cut.columns];
    }
    one = team.sum(one);
    other = team.sum(other);
    if (team.lane() == 0) {
      first[row] = one;
      second[row] = other;
    }
  }
};

/// dx = inverse·(γ·dy − mean_dy − x̂·mean_dy_x), the gradient through the statistics included.
template <typename T>
struct ColumnInputGradient {
  const T* x;
  const T* dy;
  T* dx;
  const float* mean;
  const float* inverse;
  const float* gamma;
  const float* mean_dy;
  const float* mean_dy_x;
  ColumnParts cut;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    const ColumnRange range = cut.range(unit);
    for (std::int64_t c = range.first + team.lane(); c < range.last; c += team.size()) {
      const std::int64_t s = range.slab * cut.columns + c;
      const float center = mean[s];
      const float scale = inverse[s];
      const float plain = mean_dy[s];
      const float weighted = mean_dy_x[s];
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const std::int64_t at = row * cut.columns + c;
        const float centered = (static_cast<float>(x[at]) - center) * scale;
        dx[at] = static_cast<T>(
            scale * (gamma[c] * static_cast<float>(dy[at]) - plain - centered * weighted));
      }
    }
  }
};

/// Of every part and column: dy <- dy where y > 0, else 0 (not without `y`);  sums = Σ dy.
template <typename T>
struct ColumnBiasSums {
  const T* y;  ///< the ReLU's output; null: no ReLU, or masked already
  T* dy;
  float* sums;
  ColumnParts cut;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    const ColumnRange range = cut.range(unit);
    for (std::int64_t c = range.first + team.lane(); c < range.last; c += team.size()) {
      double total = 0.0;
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const std::int64_t at = row * cut.columns + c;
        total += static_cast<double>(masked_gradient(y, dy, at));
      }
      sums[range.place * cut.columns + c] = static_cast<float>(total);
    }
  }
};

/// Row = column of one slab: bias = the sum over all parts.
struct MergedBias {
  const float* sums;
  float* bias;
  ColumnParts cut;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    double total = 0.0;
    for (std::int64_t part = team.lane(); part < cut.parts; part += team.size()) {
      total += static_cast<double>(sums[part * cut.columns + row]);
    }
    total = team.sum(total);
    if (team.lane() == 0) {
      bias[row] = static_cast<float>(total);
    }
  }
};

}  // namespace paceline::kernels
