// SPDX-License-Identifier: Apache-2.0
// The two 16-bit floating-point formats: IEEE binary16 ("half") and bfloat16, stored as their bits.
// Conversions round to nearest, ties to even; values beyond the largest finite one become infinite,
// NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace paceline {

inline constexpr float kLargestHalf = 65504.0F;

[[nodiscard]] std::uint16_t to_half(float value) noexcept;
[[nodiscard]] float from_half(std::uint16_t bits) noexcept;
[[nodiscard]] std::uint16_t to_bfloat(float value) noexcept;
[[nodiscard]] float from_bfloat(std::uint16_t bits) noexcept;

// Arrays: both spans have the same length and do not overlap unless they are the same memory.

/// out[i] = in[i]·scale in 16 bits.
void to_half(std::span<const float> in, float scale, std::span<std::uint16_t> out) noexcept;
void to_bfloat(std::span<const float> in, float scale, std::span<std::uint16_t> out) noexcept;
/// out[i] = in[i]·scale.
void from_half(std::span<const std::uint16_t> in, float scale, std::span<float> out) noexcept;
void from_bfloat(std::span<const std::uint16_t> in, float scale, std::span<float> out) noexcept;

/// values[i] becomes the nearest value that the format has.
void round_to_half(std::span<float> values) noexcept;
void round_to_bfloat(std::span<float> values) noexcept;

/// dst[i] = dst[i] + src[i], added in fp32 and rounded once.
void add_half(std::uint16_t* dst, const std::uint16_t* src, std::size_t count) noexcept;
void add_bfloat(std::uint16_t* dst, const std::uint16_t* src, std::size_t count) noexcept;

}  // namespace paceline
