// SPDX-License-Identifier: Apache-2.0
// The norms' forward for a GPU (kernels_norm.h has the CPU's, which keeps tiles of columns in
// vectors; kernels_column_gradients.h has the way back). Here unit i of ColumnParts is a lane's: it
// owns neighbouring columns and runs down a part of the rows. A second, small launch merges the
// parts. See kernels.h for what a functor and T are, kernels_packs.h for how memory is kept busy.
//
// A column's elements of a part are added in the order of their rows, in blocks where it says so,
// by one lane: sums depend on how many parts there are, and not on how many columns a lane has.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"
#include "common/core/kernels_packs.h"

namespace paceline::kernels {

/// Rows that are summed in fp32 before fp64 takes over.
inline constexpr std::int64_t kColumnBlock = 64;

/// What one lane takes of a batch.
struct ColumnStrip {
  std::int64_t slab;
  std::int64_t place;  ///< slab · parts + part
  std::int64_t first;  ///< column
  std::int64_t begin;  ///< row of the batch
  std::int64_t end;
};

/// A batch [slabs · rows, columns], the rows of each slab cut into parts.
struct ColumnParts {
  std::int64_t slabs;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t parts;  ///< of a slab

  /// Of lanes that own `width` columns each, a divisor of all.
  [[nodiscard]] PACELINE_HD std::int64_t units(int width) const noexcept {
    return slabs * parts * (columns / width);
  }
  [[nodiscard]] PACELINE_HD std::int64_t height() const noexcept {
    return (rows + parts - 1) / parts;
  }
  /// Rows of a part, 0 where the ones before took them all.
  [[nodiscard]] PACELINE_HD std::int64_t rows_of(std::int64_t part) const noexcept {
    const std::int64_t left = rows - part * height();
    const std::int64_t most = height() < left ? height() : left;
    return most > 0 ? most : 0;
  }
  /// Of a unit; neighbouring ones have neighbouring columns.
  [[nodiscard]] PACELINE_HD ColumnStrip strip(std::int64_t unit, int width) const noexcept {
    const std::int64_t strips = columns / width;
    const std::int64_t place = unit / strips;
    const std::int64_t slab = place / parts;
    const std::int64_t part = place % parts;
    const std::int64_t begin = slab * rows + part * height();
    return {slab, place, unit % strips * width, begin, begin + rows_of(part)};
  }
};

/// Mean and Σ (x − mean)² of a column's first elements, more merged in (Chan, Golub & LeVeque
/// 1979). `share` is what the others are of all.
struct RunningMoments {
  double mean = 0.0;
  double m2 = 0.0;
  PACELINE_HD void merge(double other_mean, double other_m2, double count, double share) noexcept {
    const double distance = other_mean - mean;
    mean += distance * share;
    m2 += other_m2 + distance * distance * count * share;
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

  [[nodiscard]] PACELINE_HD int width() const { return pack_width<kSumPack>(cut.columns, x); }
  [[nodiscard]] std::int64_t units() const { return cut.units(width()); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    width() == kSumPack ? strip<kSumPack>(unit) : strip<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void strip(std::int64_t unit) const {
    const ColumnStrip part = cut.strip(unit, N);
    RunningMoments total[N];
    for (std::int64_t begin = part.begin; begin < part.end; begin += kColumnBlock) {
      const std::int64_t left = part.end - begin;
      const std::int64_t rows = kColumnBlock < left ? kColumnBlock : left;
      merge_block(x + begin * cut.columns + part.first, rows,
                  static_cast<double>(begin - part.begin), total);
    }
    for (int n = 0; n < N; ++n) {
      mean[part.place * cut.columns + part.first + n] = total[n].mean;
      m2[part.place * cut.columns + part.first + n] = total[n].m2;
    }
  }
  /// `before`: rows that `total` has already.
  template <int N>
  PACELINE_HD void merge_block(const T* from, std::int64_t rows, double before,
                               RunningMoments (&total)[N]) const {
    constexpr int kAhead = rows_ahead<T>(1);
    const auto origin = load_pack<N>(from);
    float plain[N] = {};
    float squares[N] = {};
    for_row_groups<kAhead>(0, rows, [&](std::int64_t row, auto group) {
      Pack<T, N> value[kAhead];
      load_rows(from + row * cut.columns, cut.columns, group, value);
      PACELINE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        for (int n = 0; n < N && k < group.rows; ++n) {
          const float distance =
              static_cast<float>(value[k].at[n]) - static_cast<float>(origin.at[n]);
          plain[n] += distance;
          squares[n] += distance * distance;
        }
      }
    });
    const auto count = static_cast<double>(rows);
    const double share = count / (before + count);
    for (int n = 0; n < N; ++n) {
      const double shift = rows == kColumnBlock  // the same bits, without a division
                               ? static_cast<double>(plain[n]) * (1.0 / kColumnBlock)
                               : static_cast<double>(plain[n]) / count;
      const double around = static_cast<double>(squares[n]) - static_cast<double>(plain[n]) * shift;
      total[n].merge(static_cast<double>(static_cast<float>(origin.at[n])) + shift,
                     around > 0.0 ? around : 0.0, before, share);
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
  T* y;               ///< may be x or the addend
  const T* addend;    ///< shaped like y; null: nothing
  const float* mean;  ///< [slab, column], as inverse
  const float* inverse;
  const float* gamma;
  const float* beta;
  ColumnParts cut;
  bool relu;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kElementPack>(cut.columns, x, y, addend);
  }
  [[nodiscard]] std::int64_t units() const { return cut.units(width()); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    width() == kElementPack ? strip<kElementPack>(unit) : strip<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void strip(std::int64_t unit) const {
    constexpr int kAhead = kElementRows;
    const ColumnStrip part = cut.strip(unit, N);
    const float floor = relu ? 0.0F : -INFINITY;
    float center[N];
    float factor[N];
    float shift[N];
    for (int n = 0; n < N; ++n) {
      const std::int64_t c = part.first + n;
      center[n] = mean[part.slab * cut.columns + c];
      factor[n] = inverse[part.slab * cut.columns + c] * gamma[c];
      shift[n] = beta[c];
    }
    for_row_groups<kAhead>(part.begin, part.end, [&](std::int64_t row, auto group) {
      const std::int64_t at = row * cut.columns + part.first;
      Pack<T, N> value[kAhead];
      Pack<T, N> more[kAhead] = {};
      load_rows(x + at, cut.columns, group, value);
      if (addend != nullptr) {
        load_rows(addend + at, cut.columns, group, more);
      }
      PACELINE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        for (int n = 0; n < N && k < group.rows; ++n) {
          float to = (static_cast<float>(value[k].at[n]) - center[n]) * factor[n] + shift[n];
          to += static_cast<float>(more[k].at[n]);
          value[k].at[n] = static_cast<T>(to < floor ? floor : to);  // keeps NaN
        }
      }
      store_rows(y + at, cut.columns, group, value);
    });
  }
};

}  // namespace paceline::kernels
