// SPDX-License-Identifier: Apache-2.0
// 64 elements at a time as one word of bits, and back (AVX2, the least that Paceline builds for).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace paceline::compress {

inline constexpr std::size_t kWord = 64;
inline constexpr std::size_t kLanes = 8;

[[nodiscard]] constexpr std::size_t words_of(std::size_t bits) noexcept {
  return (bits + kWord - 1) / kWord;
}

/// Bit i is set where values[i] < 0, for 64 values.
[[nodiscard]] inline std::uint64_t negative_bits(const float* values) noexcept {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < kWord; i += kLanes) {
    const __m256 less = _mm256_cmp_ps(_mm256_loadu_ps(values + i), _mm256_setzero_ps(), _CMP_LT_OQ);
    bits |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_ps(less))) << i;
  }
  return bits;
}

/// Lane i: all ones where bit i of the word's lowest byte is set.
[[nodiscard]] inline __m256 lanes_of(std::uint64_t word) noexcept {
  const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i byte = _mm256_set1_epi32(static_cast<int>(word & 0xFFU));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(byte, lane_bit), lane_bit));
}

/// values[i] = combine(values[i], bit i set ? when_set : when_clear), vectors of eight floats, for
/// 64 values.
template <typename Combine>
void combine_word(std::uint64_t word, __m256 when_clear, __m256 when_set, float* values,
                  Combine combine) noexcept {
  for (std::size_t i = 0; i < kWord; i += kLanes) {
    const __m256 chosen = _mm256_blendv_ps(when_clear, when_set, lanes_of(word >> i));
    _mm256_storeu_ps(values + i, combine(_mm256_loadu_ps(values + i), chosen));
  }
}

/// Sum of the lanes in double.
[[nodiscard]] inline __m256d widen_sum(__m256 values) noexcept {
  return _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(values)),
                       _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}
[[nodiscard]] inline double total(__m256d lanes) noexcept {
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(lanes), _mm256_extractf128_pd(lanes, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

/// Sums over 64 values of f(values of eight lanes), in double.
template <typename F>
[[nodiscard]] __m256d sum_word(const float* values, F f) noexcept {
  const auto at = [&](std::size_t i) { return f(_mm256_loadu_ps(values + i * kLanes)); };
  const __m256 first = _mm256_add_ps(_mm256_add_ps(at(0), at(1)), _mm256_add_ps(at(2), at(3)));
  const __m256 second = _mm256_add_ps(_mm256_add_ps(at(4), at(5)), _mm256_add_ps(at(6), at(7)));
  return widen_sum(_mm256_add_ps(first, second));
}

}  // namespace paceline::compress
