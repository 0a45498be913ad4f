// SPDX-License-Identifier: Apache-2.0
// What the codecs share: checks of messages, random numbers by counter, residuals.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "common/base/error.h"
#include "common/compress/codec.h"

namespace paceline::compress {

[[nodiscard]] inline Error bad_message(std::string_view codec, const CodecContext& context,
                                       std::string_view what) {
  return Error(fmt::format("{}: rank {}'s message for the range from element {} {}", codec,
                           context.rank, context.begin, what));
}

inline void expect_bytes(std::string_view codec, const CodecContext& context, std::size_t have,
                         std::size_t want) {
  if (have != want) {
    throw bad_message(codec, context, fmt::format("has {} bytes, want {}", have, want));
  }
}

template <typename T>
[[nodiscard]] const T* view(std::span<const std::byte> message, std::size_t offset = 0) noexcept {
  return reinterpret_cast<const T*>(message.data() + offset);
}
template <typename T>
[[nodiscard]] T* view(std::span<std::byte> message, std::size_t offset = 0) noexcept {
  return reinterpret_cast<T*>(message.data() + offset);
}

/// The bits of |value|: ordered as the magnitudes are, NaN above infinity.
[[nodiscard]] inline std::uint32_t magnitude_bits(float value) noexcept {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
}
[[nodiscard]] inline bool is_finite(float value) noexcept {
  return magnitude_bits(value) < 0x7F800000U;
}
/// `value`, or 0 where it is not finite.
[[nodiscard]] inline float finite_or_zero(float value) noexcept {
  return is_finite(value) ? value : 0.0F;
}

/// One step of splitmix64 (Steele, Lea & Flood 2014).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
/// Key of the random numbers of (seed, step, salt).
[[nodiscard]] constexpr std::uint64_t random_key(std::uint64_t seed, std::int64_t step,
                                                 std::uint64_t salt) noexcept {
  return mix(mix(mix(seed) ^ static_cast<std::uint64_t>(step)) ^ salt);
}

/// max(1, ceil(n·density)), at most n; 0 for n = 0. The product's rounding does not count.
[[nodiscard]] inline std::size_t kept(std::size_t n, double density) noexcept {
  if (n == 0) {
    return 0;
  }
  const double share = std::ceil(static_cast<double>(n) * density * (1.0 - 1e-12));
  const auto k = static_cast<std::size_t>(share < 1.0 ? 1.0 : share);
  return k < n ? k : n;
}

/// Indices are 32 bits wide.
inline void check_elements(std::string_view codec, std::size_t n) {
  if (n > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(fmt::format("{}: a range of {} elements is over 2^32 - 1", codec, n));
  }
}

}  // namespace paceline::compress
