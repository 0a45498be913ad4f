// SPDX-License-Identifier: Apache-2.0
// The CPU's pooling over windows that may overlap, and over all positions (kernels_windows.h has
// the GPU's; see kernels.h for what a functor is). Activations are NHWC.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"

namespace paceline::kernels {

/// Extents of one sample and of the window, the same in both directions.
struct WindowGeometry {
  std::int64_t height;  ///< of the input
  std::int64_t width;
  std::int64_t channels;
  std::int64_t rows;  ///< of the output
  std::int64_t columns;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t padding;
};

/// Row r = (sample, output row): y = the largest value of each window, winner = its place in the
/// window, i·kernel + j, the first of equals. What lies in the padding is never chosen.
struct WindowMaxForward {
  const float* x;
  float* y;
  std::uint8_t* winner;
  WindowGeometry g;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const float* sample = x + row / g.rows * g.height * g.width * g.channels;
    const std::int64_t top = row % g.rows * g.stride - g.padding;
    for (std::int64_t column = 0; column < g.columns; ++column) {
      const std::int64_t to = (row * g.columns + column) * g.channels;
      window(team, sample, top, column * g.stride - g.padding, y + to, winner + to);
    }
  }

 private:
  template <typename Team>
  PACELINE_HD void window(const Team& team, const float* sample, std::int64_t top,
                          std::int64_t left, float* best, std::uint8_t* which) const {
    bool first = true;
    for (std::int64_t i = top < 0 ? -top : 0; i < g.kernel && top + i < g.height; ++i) {
      for (std::int64_t j = left < 0 ? -left : 0; j < g.kernel && left + j < g.width; ++j) {
        const float* from = sample + ((top + i) * g.width + left + j) * g.channels;
        const auto place = static_cast<std::uint8_t>(i * g.kernel + j);
        take(team, from, place, first, best, which);
        first = false;
      }
    }
  }
  template <typename Team>
  PACELINE_HD void take(const Team& team, const float* from, std::uint8_t place, bool first,
                        float* best, std::uint8_t* which) const {
#pragma omp simd
    for (std::int64_t c = team.lane(); c < g.channels; c += team.size()) {
      const bool better = first || from[c] > best[c];
      best[c] = better ? from[c] : best[c];
      which[c] = better ? place : which[c];
    }
  }
};

/// Row r = (sample, input row): dx = Σ dy of the windows whose winner the input is.
struct WindowMaxBackward {
  const std::uint8_t* winner;
  const float* dy;
  float* dx;
  WindowGeometry g;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t sample = row / g.height;
    const std::int64_t h = row % g.height + g.padding;
    for (std::int64_t column = 0; column < g.width; ++column) {
      const std::int64_t w = column + g.padding;
      float* to = dx + (row * g.width + column) * g.channels;
      for (std::int64_t c = team.lane(); c < g.channels; c += team.size()) {
        to[c] = 0.0F;
      }
      for (std::int64_t r = first_window(h); r < g.rows && r * g.stride <= h; ++r) {
        for (std::int64_t q = first_window(w); q < g.columns && q * g.stride <= w; ++q) {
          const auto place =
              static_cast<std::uint8_t>((h - r * g.stride) * g.kernel + w - q * g.stride);
          add(team, ((sample * g.rows + r) * g.columns + q) * g.channels, place, to);
        }
      }
    }
  }

 private:
  /// The first window that reaches `at`, counted in the padded input.
  [[nodiscard]] PACELINE_HD std::int64_t first_window(std::int64_t at) const {
    return at < g.kernel ? 0 : (at - g.kernel) / g.stride + 1;
  }
  template <typename Team>
  PACELINE_HD void add(const Team& team, std::int64_t from, std::uint8_t place, float* to) const {
#pragma omp simd
    for (std::int64_t c = team.lane(); c < g.channels; c += team.size()) {
      to[c] += winner[from + c] == place ? dy[from + c] : 0.0F;
    }
  }
};

/// Row r = sample: y[c] = Σ_positions x[position, c] / positions.
struct AverageForward {
  const float* x;
  float* y;
  std::int64_t positions;
  std::int64_t channels;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const float* from = x + row * positions * channels;
    float* to = y + row * channels;
    for (std::int64_t c = team.lane(); c < channels; c += team.size()) {
      to[c] = 0.0F;
    }
    for (std::int64_t p = 0; p < positions; ++p) {
#pragma omp simd
      for (std::int64_t c = team.lane(); c < channels; c += team.size()) {
        to[c] += from[p * channels + c];
      }
    }
    const float share = 1.0F / static_cast<float>(positions);
    for (std::int64_t c = team.lane(); c < channels; c += team.size()) {
      to[c] *= share;
    }
  }
};

/// Row r = (sample, position): dx[c] = dy[sample, c] / positions.
struct AverageBackward {
  const float* dy;
  float* dx;
  std::int64_t positions;
  std::int64_t channels;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const float* from = dy + row / positions * channels;
    float* to = dx + row * channels;
    const float share = 1.0F / static_cast<float>(positions);
#pragma omp simd
    for (std::int64_t c = team.lane(); c < channels; c += team.size()) {
      to[c] = from[c] * share;
    }
  }
};

}  // namespace paceline::kernels
