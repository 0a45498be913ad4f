// SPDX-License-Identifier: Apache-2.0
// Order-independent gradient sums (sync.exact): each element becomes round(x·2^40) as a 64-bit
// integer, integers are added, and the sum becomes a float once. Integer addition is associative,
// so any topology and any order of arrival give the same bits.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/error.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// Smallest step: 2^-40 (9.1e-13). A sum over ranks stays within ±2^23.
inline constexpr double kFixedScale = 0x1p40;

/// Magnitude that one of `world` ranks' gradients must stay under, so that no sum can overflow.
[[nodiscard]] constexpr double fixed_limit(int world) noexcept {
  return (0x1p23 - 1.0) / static_cast<double>(world);
}

namespace detail {

/// Passes round(in[i]·2^40), ties to even, to `store(i, value)`. In two passes over blocks, which
/// compilers vectorise.
template <typename Store>
[[nodiscard]] bool convert_to_fixed(std::span<const float> in, int world, Store store) noexcept {
  constexpr std::size_t kBlock = 512;
  const double limit = fixed_limit(world);
  std::array<double, kBlock> rounded;
  std::int64_t outside = 0;
  for (std::size_t begin = 0; begin < in.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, in.size() - begin);
    const float* __restrict from = in.data() + begin;
    for (std::size_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(from[i]);
      const bool inside = std::fabs(value) < limit;
      outside |= inside ? std::int64_t{0} : std::int64_t{1};
      rounded[i] = std::nearbyint((inside ? value : 0.0) * kFixedScale);
    }
    for (std::size_t i = 0; i < n; ++i) {
      store(begin + i, static_cast<std::int64_t>(rounded[i]));
    }
  }
  return outside == 0;
}

}  // namespace detail

/// out[i] = round(in[i]·2^40), ties to even. Both spans have the same length and do not overlap.
/// False when an element is NaN or not under fixed_limit(world) in magnitude; `out` is then
/// unspecified.
[[nodiscard]] inline bool to_fixed(std::span<const float> in, std::span<std::int64_t> out,
                                   int world) noexcept {
  std::int64_t* to = out.data();
  return detail::convert_to_fixed(in, world,
                                  [to](std::size_t i, std::int64_t value) { to[i] = value; });
}

/// sum[i] += round(in[i]·2^40); otherwise as to_fixed.
[[nodiscard]] inline bool add_fixed(std::span<const float> in, std::span<std::int64_t> sum,
                                    int world) noexcept {
  std::int64_t* to = sum.data();
  return detail::convert_to_fixed(in, world,
                                  [to](std::size_t i, std::int64_t value) { to[i] += value; });
}

/// out[i] = sum[i]·2^-40, rounded to the nearest float. Both spans have the same length.
inline void from_fixed(std::span<const std::int64_t> sum, std::span<float> out) noexcept {
  const std::int64_t* __restrict from = sum.data();
  float* __restrict to = out.data();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    to[i] = static_cast<float>(static_cast<double>(from[i]) * (1.0 / kFixedScale));
  }
}

/// The error to throw when to_fixed or add_fixed refuses rank `rank`'s gradient of `bucket`.
[[nodiscard]] inline Error fixed_range_error(int rank, BucketId bucket, int world) {
  return Error(fmt::format(
      "rank {}: a gradient in bucket {} is NaN or beyond ±{:.0f}, the range of sync.exact=true "
      "with {} ranks (2^23 after summation): lower optimizer.lr or set sync.exact=false",
      rank, bucket, fixed_limit(world), world));
}

}  // namespace paceline
