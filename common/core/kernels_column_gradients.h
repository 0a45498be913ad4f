// SPDX-License-Identifier: Apache-2.0
// The gradients of norms and biases for a GPU, cut as kernels_columns.h says.
#pragma once

#include <cstdint>

#include "common/core/kernels_columns.h"

namespace paceline::kernels {

/// dy[i] <- 0 where the ReLU's output y[i] is not above 0
template <typename T>
struct MaskedByRelu {
  const T* y;
  T* dy;

  PACELINE_HD void operator()(std::int64_t i) const {
    if (!(static_cast<float>(y[i]) > 0.0F)) {
      dy[i] = static_cast<T>(0.0F);
    }
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(y), changes(dy));
  }
};

/// The same for the packs of a group's rows, of which `d` holds dy's; dy is written where it
/// changes.
template <typename T, int N, int Rows, typename Group>
PACELINE_HD void mask_rows(const T* y, T* dy, std::int64_t stride, Group group,
                           Pack<T, N> (&d)[Rows]) {
  Pack<T, N> value[Rows];
  load_rows(y, stride, group, value);
  PACELINE_UNROLL
  for (int k = 0; k < Rows; ++k) {
    bool changed = false;
    for (int n = 0; n < N; ++n) {
      const bool passes = static_cast<float>(value[k].at[n]) > 0.0F;
      d[k].at[n] = passes ? d[k].at[n] : static_cast<T>(0.0F);
      changed = changed || !passes;
    }
    if (changed && k < group.rows) {
      store_pack(dy + k * stride, d[k]);
    }
  }
}

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

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kSumPack>(cut.columns, x, y, dy);
  }
  [[nodiscard]] std::int64_t units() const { return cut.units(width()); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    width() == kSumPack ? strip<kSumPack>(unit) : strip<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void strip(std::int64_t unit) const {
    const ColumnStrip part = cut.strip(unit, N);
    float center[N];
    float scale[N];
    double total[N] = {};
    double total_x[N] = {};
    for (int n = 0; n < N; ++n) {
      center[n] = mean[part.slab * cut.columns + part.first + n];
      scale[n] = inverse[part.slab * cut.columns + part.first + n];
    }
    for (std::int64_t begin = part.begin; begin < part.end; begin += kColumnBlock) {
      const std::int64_t end = begin + kColumnBlock < part.end ? begin + kColumnBlock : part.end;
      float plain[N] = {};
      float weighted[N] = {};
      block(begin, end, part.first, center, scale, plain, weighted);
      for (int n = 0; n < N; ++n) {
        total[n] += static_cast<double>(plain[n]);
        total_x[n] += static_cast<double>(weighted[n]);
      }
    }
    for (int n = 0; n < N; ++n) {
      sum_dy[part.place * cut.columns + part.first + n] = total[n];
      sum_dy_x[part.place * cut.columns + part.first + n] = total_x[n];
    }
  }
  template <int N>
  PACELINE_HD void block(std::int64_t begin, std::int64_t end, std::int64_t first,
                         const float (&center)[N], const float (&scale)[N], float (&plain)[N],
                         float (&weighted)[N]) const {
    constexpr int kAhead = rows_ahead<T>(2);
    for_row_groups<kAhead>(begin, end, [&](std::int64_t row, auto group) {
      const std::int64_t at = row * cut.columns + first;
      Pack<T, N> value[kAhead];
      Pack<T, N> d[kAhead];
      load_rows(x + at, cut.columns, group, value);
      load_rows(dy + at, cut.columns, group, d);
      if (y != nullptr) {
        mask_rows(y + at, dy + at, cut.columns, group, d);
      }
      PACELINE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        for (int n = 0; n < N && k < group.rows; ++n) {
          const auto gradient = static_cast<float>(d[k].at[n]);
          plain[n] += gradient;
          weighted[n] += gradient * ((static_cast<float>(value[k].at[n]) - center[n]) * scale[n]);
        }
      }
    });
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
  T* dx;  ///< may be x or dy
  const float* mean;
  const float* inverse;
  const float* gamma;
  const float* mean_dy;
  const float* mean_dy_x;
  ColumnParts cut;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kElementPack>(cut.columns, x, dy, dx);
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
    float center[N];
    float scale[N];
    float factor[N];
    float plain[N];
    float weighted[N];
    for (int n = 0; n < N; ++n) {
      const std::int64_t s = part.slab * cut.columns + part.first + n;
      center[n] = mean[s];
      scale[n] = inverse[s];
      factor[n] = gamma[part.first + n];
      plain[n] = mean_dy[s];
      weighted[n] = mean_dy_x[s];
    }
    for_row_groups<kAhead>(part.begin, part.end, [&](std::int64_t row, auto group) {
      const std::int64_t at = row * cut.columns + part.first;
      Pack<T, N> value[kAhead];
      Pack<T, N> d[kAhead];
      load_rows(x + at, cut.columns, group, value);
      load_rows(dy + at, cut.columns, group, d);
      PACELINE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        for (int n = 0; n < N && k < group.rows; ++n) {
          const float centered = (static_cast<float>(value[k].at[n]) - center[n]) * scale[n];
          d[k].at[n] = static_cast<T>(scale[n] * (factor[n] * static_cast<float>(d[k].at[n]) -
                                                  plain[n] - centered * weighted[n]));
        }
      }
      store_rows(dx + at, cut.columns, group, d);
    });
  }
};

/// Of every part and column: dy <- dy where y > 0, else 0 (not without `y`);  sums = Σ dy.
template <typename T>
struct ColumnBiasSums {
  const T* y;  ///< the ReLU's output; null: no ReLU, or masked already
  T* dy;
  float* sums;
  ColumnParts cut;

  [[nodiscard]] PACELINE_HD int width() const { return pack_width<kSumPack>(cut.columns, y, dy); }
  [[nodiscard]] std::int64_t units() const { return cut.units(width()); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    width() == kSumPack ? strip<kSumPack>(unit) : strip<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void strip(std::int64_t unit) const {
    constexpr int kAhead = rows_ahead<T>(2);
    const ColumnStrip part = cut.strip(unit, N);
    double total[N] = {};
    for_row_groups<kAhead>(part.begin, part.end, [&](std::int64_t row, auto group) {
      const std::int64_t at = row * cut.columns + part.first;
      Pack<T, N> d[kAhead];
      load_rows(dy + at, cut.columns, group, d);
      if (y != nullptr) {
        mask_rows(y + at, dy + at, cut.columns, group, d);
      }
      PACELINE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        for (int n = 0; n < N && k < group.rows; ++n) {
          total[n] += static_cast<double>(static_cast<float>(d[k].at[n]));
        }
      }
    });
    for (int n = 0; n < N; ++n) {
      sums[part.place * cut.columns + part.first + n] = static_cast<float>(total[n]);
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
