// SPDX-License-Identifier: Apache-2.0
// What a GPU's layers need besides norms and products (see kernels.h for what a functor is): sums
// are fp32 in registers, activations of type T are read and written once.
#pragma once

#include <cstdint>

#include "common/core/kernels.h"
#include "common/core/kernels_pool.h"

namespace paceline::kernels {

/// in [n, rows, columns] -> out [n, columns, rows], element i of the output; changes the format on
/// the way. One row: a plain copy.
template <typename From, typename To>
struct Transposed {
  const From* in;
  To* out;
  std::int64_t rows;
  std::int64_t columns;

  PACELINE_HD void operator()(std::int64_t i) const {
    std::int64_t from = i;
    if (rows > 1) {
      const std::int64_t matrix = rows * columns;
      const std::int64_t within = i % matrix;
      from = i - within + within % rows * columns + within / rows;
    }
    out[i] = static_cast<To>(static_cast<float>(in[from]));
  }
};

/// y[i] = act(y[i] + bias[i mod channels])
template <typename T>
struct BiasActivation {
  T* y;
  const float* bias;
  std::int64_t channels;
  bool relu;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float value = static_cast<float>(y[i]) + bias[i % channels];
    y[i] = static_cast<T>(relu && value < 0.0F ? 0.0F : value);  // keeps NaN
  }
};

/// i = (sample, channel): y = Σ_positions x / positions.
template <typename T>
struct ChannelAverage {
  const T* x;
  T* y;
  std::int64_t positions;
  std::int64_t channels;

  PACELINE_HD void operator()(std::int64_t i) const {
    const T* from = x + i / channels * positions * channels + i % channels;
    float total = 0.0F;
    for (std::int64_t p = 0; p < positions; ++p) {
      total += static_cast<float>(from[p * channels]);
    }
    y[i] = static_cast<T>(total / static_cast<float>(positions));
  }
};

/// i = (sample, position, channel): dx = dy[sample, channel] / positions.
template <typename T>
struct ChannelAverageGradient {
  const T* dy;
  T* dx;
  std::int64_t positions;
  std::int64_t channels;

  PACELINE_HD void operator()(std::int64_t i) const {
    const std::int64_t sample = i / (positions * channels);
    const auto d = static_cast<float>(dy[sample * channels + i % channels]);
    dx[i] = static_cast<T>(d / static_cast<float>(positions));
  }
};

/// Row r = (sample, input row): dx = Σ dy of the windows whose winner the input is.
template <typename T>
struct WindowMaxGather {
  const std::uint8_t* winner;
  const T* dy;
  T* dx;
  WindowGeometry g;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t h = row % g.height + g.padding;
    const std::int64_t top = row / g.height * g.rows;
    for (std::int64_t column = 0; column < g.width; ++column) {
      T* to = dx + (row * g.width + column) * g.channels;
      for (std::int64_t c = team.lane(); c < g.channels; c += team.size()) {
        to[c] = static_cast<T>(gathered(top, h, column + g.padding, c));
      }
    }
  }

 private:
  /// The first window that reaches `at`, counted in the padded input.
  [[nodiscard]] PACELINE_HD std::int64_t first_window(std::int64_t at) const {
    return at < g.kernel ? 0 : (at - g.kernel) / g.stride + 1;
  }
  [[nodiscard]] PACELINE_HD float gathered(std::int64_t top, std::int64_t h, std::int64_t w,
                                           std::int64_t c) const {
    float total = 0.0F;
    for (std::int64_t r = first_window(h); r < g.rows && r * g.stride <= h; ++r) {
      for (std::int64_t q = first_window(w); q < g.columns && q * g.stride <= w; ++q) {
        const std::int64_t place = (h - r * g.stride) * g.kernel + w - q * g.stride;
        const std::int64_t from = ((top + r) * g.columns + q) * g.channels + c;
        total += winner[from] == place ? static_cast<float>(dy[from]) : 0.0F;
      }
    }
    return total;
  }
};

/// A batch's losses and right answers as they are summed.
struct LossSum {
  double loss;
  double correct;
};

/// Row = part: the sums over its share of the places.
struct LossParts {
  const float* loss;
  const std::uint8_t* correct;
  LossSum* sums;
  std::int64_t places;
  std::int64_t parts;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t part) const {
    double losses = 0.0;
    double right = 0.0;
    const std::int64_t end = (part + 1) * places / parts;
    for (std::int64_t i = part * places / parts + team.lane(); i < end; i += team.size()) {
      losses += static_cast<double>(loss[i]);
      right += static_cast<double>(correct[i]);
    }
    losses = team.sum(losses);
    right = team.sum(right);
    if (team.lane() == 0) {
      sums[part] = {losses, right};
    }
  }
};

/// One row: the sum of all parts, times `share`.
struct LossTotal {
  const LossSum* sums;
  LossSum* total;
  std::int64_t parts;
  double share;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t /*row*/) const {
    double losses = 0.0;
    double right = 0.0;
    for (std::int64_t i = team.lane(); i < parts; i += team.size()) {
      losses += sums[i].loss;
      right += sums[i].correct;
    }
    losses = team.sum(losses);
    right = team.sum(right);
    if (team.lane() == 0) {
      *total = {losses * share, right * share};
    }
  }
};

}  // namespace paceline::kernels
