// SPDX-License-Identifier: Apache-2.0
// Which elements a sparse codec keeps.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <span>

#include "common/compress/message.h"

namespace paceline::compress {

/// The indices of the out.size() <= values.size() elements of largest magnitude, ascending. Of
/// equal magnitudes the lower index counts as larger; NaN is the largest. Two passes over `values`:
/// a histogram of the magnitudes' leading bits, then those at or above the bin that the last one
/// falls in.
void select_largest(std::span<const float> values, std::span<std::uint32_t> out);

/// A uniformly random set of out.size() <= elements distinct indices, ascending; the same for the
/// same key (Floyd's algorithm: Bentley & Floyd 1987).
void select_random(std::size_t elements, std::uint64_t key, std::span<std::uint32_t> out);

/// Passes the index of each element with magnitude_bits(value) >= least, ascending, to `take`.
/// `least` is under 2^31.
template <typename Take>
void for_each_at_least(std::span<const float> values, std::uint32_t least, Take take) {
  constexpr std::size_t kFloats = 8;  // of a vector
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i below = _mm256_set1_epi32(static_cast<std::int32_t>(least) - 1);
  const std::size_t whole = values.size() / kFloats * kFloats;
  for (std::size_t i = 0; i < whole; i += kFloats) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(values.data() + i));
    const __m256i hits = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below);
    auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(hits)));
    while (mask != 0) {
      take(static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(std::countr_zero(mask)));
      mask &= mask - 1;
    }
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    if (magnitude_bits(values[i]) >= least) {
      take(static_cast<std::uint32_t>(i));
    }
  }
}

}  // namespace paceline::compress
