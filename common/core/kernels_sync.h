// SPDX-License-Identifier: Apache-2.0
// What gradients go through on a GPU between backward and the optimizer: 16-bit formats on the wire
// and the norm of the whole gradient. See kernels.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/core/kernels.h"

namespace paceline::kernels {

PACELINE_HD inline std::uint32_t float_bits(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
PACELINE_HD inline float float_of(std::uint32_t bits) {
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// IEEE binary16, rounded as base/half.h does, in integers so that one code serves both compilers.
struct HalfWire {
  [[nodiscard]] PACELINE_HD static std::uint16_t encode(float value) {
    constexpr std::uint32_t kOverflow = 0x47800000;    // 65536
    constexpr std::uint32_t kSmallest = 0x38800000;    // 2^-14, the smallest normal half
    constexpr std::uint32_t kSubnormals = 0x3F000000;  // 0.5, whose last bit weighs 2^-24
    const std::uint32_t all = float_bits(value);
    const std::uint32_t sign = all & 0x80000000U;
    const std::uint32_t bits = all ^ sign;
    std::uint32_t half = 0;
    if (bits >= kOverflow) {
      half = bits > 0x7F800000U ? 0x7E00 : 0x7C00;
    } else if (bits < kSmallest) {
      half = float_bits(float_of(bits) + float_of(kSubnormals)) - kSubnormals;
    } else {
      half = (bits - (112U << 23U) + 0xFFFU + ((bits >> 13U) & 1U)) >> 13U;
    }
    return static_cast<std::uint16_t>(half | (sign >> 16U));
  }
  [[nodiscard]] PACELINE_HD static float decode(std::uint16_t half) {
    constexpr std::uint32_t kExponent = 0x7C00U << 13U;
    const std::uint32_t sign = (half & 0x8000U) << 16U;
    const std::uint32_t shifted = (half & 0x7FFFU) << 13U;
    const std::uint32_t exponent = shifted & kExponent;
    const std::uint32_t biased = shifted + (112U << 23U);
    if (exponent == kExponent) {
      return float_of(sign | (biased + (112U << 23U)));
    }
    const float magnitude =
        exponent != 0 ? float_of(biased) : float_of(biased + (1U << 23U)) - float_of(113U << 23U);
    return float_of(sign | float_bits(magnitude));
  }
};

struct BfloatWire {
  [[nodiscard]] PACELINE_HD static std::uint16_t encode(float value) {
    const std::uint32_t bits = float_bits(value);
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
    const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<std::uint16_t>((nan ? bits | 0x00400000U : rounded) >> 16U);
  }
  [[nodiscard]] PACELINE_HD static float decode(std::uint16_t bits) {
    return float_of(static_cast<std::uint32_t>(bits) << 16U);
  }
};

/// out[i] = in[i]·scale in 16 bits.
template <typename Format>
struct ToWire {
  const float* in;
  std::uint16_t* out;
  float scale;
  PACELINE_HD void operator()(std::int64_t i) const { out[i] = Format::encode(in[i] * scale); }
};

/// out[i] = in[i]·scale.
template <typename Format>
struct FromWire {
  const std::uint16_t* in;
  float* out;
  float scale;
  PACELINE_HD void operator()(std::int64_t i) const { out[i] = Format::decode(in[i]) * scale; }
};

/// Elements that a row of SquaresOfBlocks adds up.
inline constexpr std::int64_t kNormBlock = 4096;

/// The sum over the lanes in two floats, so that nothing of `value` is lost but their sums'
/// rounding.
template <typename Team>
[[nodiscard]] PACELINE_HD double team_sum(const Team& team, double value) {
  const float high = static_cast<float>(value);
  const bool finite = high - high == 0.0F;
  const float low = finite ? static_cast<float>(value - static_cast<double>(high)) : 0.0F;
  const double sum = static_cast<double>(team.sum(high));
  return sum + static_cast<double>(team.sum(low));
}

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
    total = team_sum(team, total);
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
    sum = team_sum(team, sum);
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
};

}  // namespace paceline::kernels
