// SPDX-License-Identifier: Apache-2.0
// What gradients go through on a GPU between backward and the optimizer: 16-bit formats on the wire
// (Half and Bfloat of stored.h) and the norm of the whole gradient. See kernels.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"
#include "common/core/stored.h"

namespace paceline::kernels {

/// out[i] = in[i]·scale in 16 bits.
template <typename Format>
struct ToWire {
  const float* in;
  Format* out;
  float scale;
  PACELINE_HD void operator()(std::int64_t i) const { out[i] = static_cast<Format>(in[i] * scale); }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(in), writes(out));
  }
};

/// out[i] = in[i]·scale.
template <typename Format>
struct FromWire {
  const Format* in;
  float* out;
  float scale;
  std::int32_t* not_finite = nullptr;  ///< becomes 1 if any in[i] is not; null: nobody asks
  PACELINE_HD void operator()(std::int64_t i) const {
    const auto value = static_cast<float>(in[i]);
    out[i] = value * scale;
    if (not_finite != nullptr && !(std::fabs(value) <= 3.4028234664e38F)) {
      *not_finite = 1;
    }
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(in), writes(out));
  }
};

/// Elements that a row of SquaresOfBlocks adds up.
inline constexpr std::int64_t kNormBlock = 4096;

/// partial[r] = Σ (values[i]·scale)² over block r of `n` values; added in double in each lane.
struct SquaresOfBlocks {
  const float* values;
  std::int64_t n;
  float scale;
  double* partial;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t begin = row * kNormBlock;
    const std::int64_t end = begin + kNormBlock < n ? begin + kNormBlock : n;
    double total = 0.0;
    for (std::int64_t i = begin + team.lane(); i < end; i += team.size()) {
      const double value = static_cast<double>(values[i]) * static_cast<double>(scale);
      total += value * value;
    }
    total = team.sum(total);
    if (team.lane() == 0) {
      partial[row] = total;
    }
  }
};

/// One row: *total = Σ partial.
struct SumOfBlocks {
  const double* partial;
  std::int64_t blocks;
  float* total;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t /*row*/) const {
    double sum = 0.0;
    for (std::int64_t i = team.lane(); i < blocks; i += team.size()) {
      sum += partial[i];
    }
    sum = team.sum(sum);
    if (team.lane() == 0) {
      *total = static_cast<float>(sum);
    }
  }
};

/// values[i] *= min(1, clip_norm / (√squares + 1e-6)), as clip_factor() (arena_optimizer.h).
struct ClipByNorm {
  float* values;
  const float* squares;
  float clip_norm;
  PACELINE_HD void operator()(std::int64_t i) const {
    const float factor = clip_norm / (std::sqrt(*squares) + 1e-6F);
    values[i] *= factor < 1.0F ? factor : 1.0F;
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(changes(values));
  }
};

}  // namespace paceline::kernels
