// SPDX-License-Identifier: Apache-2.0
// The formats in which a GPU stores activations, as types that functors read as float and write
// from float: Half (IEEE binary16), Bfloat (bfloat16), or float itself. Writing rounds to nearest,
// ties to even, to the bits of base/half.h; not-a-number stays that, with bits of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "common/core/kernels.h"
#include "common/core/precision.h"

namespace paceline {

namespace stored {

[[nodiscard]] PACELINE_HD inline std::uint32_t bits_of(float value) noexcept {
  return __builtin_bit_cast(std::uint32_t, value);
}

[[nodiscard]] PACELINE_HD inline float of_bits(std::uint32_t bits) noexcept {
  return __builtin_bit_cast(float, bits);
}

[[nodiscard]] PACELINE_HD inline std::uint16_t to_bfloat(float value) noexcept {
#if defined(__CUDA_ARCH__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits | 0x00400000U) >> 16U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
#endif
}

[[nodiscard]] PACELINE_HD inline std::uint16_t to_half(float value) noexcept {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(value));
#else
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  constexpr std::uint32_t kOverflow = 0x47800000U;   // 65536
  constexpr std::uint32_t kSmallest = 0x38800000U;   // 2^-14, the least normal half
  constexpr std::uint32_t kExponents = 112U << 23U;  // between the formats' biases
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0x7C00U;
  if (magnitude > kInfinity) {
    half = 0x7E00U;
  } else if (magnitude < kSmallest) {
    // Adding 1/2 moves a subnormal half's last place to that of a float, which rounds it there.
    half = bits_of(of_bits(magnitude) + 0.5F) - 0x3F000000U;
  } else if (magnitude < kOverflow) {
    half = (magnitude - kExponents + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
  }
  return static_cast<std::uint16_t>(sign | half);
#endif
}

[[nodiscard]] PACELINE_HD inline float from_half(std::uint16_t half) noexcept {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(half));
#else
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  const std::uint32_t magnitude = half & 0x7FFFU;
  std::uint32_t bits = (magnitude << 13U) + (112U << 23U);
  if (magnitude >= 0x7C00U) {
    bits = 0x7F800000U | ((magnitude & 0x3FFU) << 13U);
  } else if (magnitude < 0x400U) {
    bits = bits_of(static_cast<float>(magnitude) * 0x1p-24F);
  }
  return of_bits(sign | bits);
#endif
}

}  // namespace stored

struct Bfloat {
  std::uint16_t bits;
  Bfloat() = default;
  explicit PACELINE_HD Bfloat(float value) noexcept : bits(stored::to_bfloat(value)) {}
  explicit PACELINE_HD operator float() const noexcept {
    return stored::of_bits(static_cast<std::uint32_t>(bits) << 16U);
  }
};

struct Half {
  std::uint16_t bits;
  Half() = default;
  explicit PACELINE_HD Half(float value) noexcept : bits(stored::to_half(value)) {}
  explicit PACELINE_HD operator float() const noexcept { return stored::from_half(bits); }
};

static_assert(std::is_trivially_copyable_v<Bfloat> && sizeof(Bfloat) == 2);
static_assert(std::is_trivially_copyable_v<Half> && sizeof(Half) == 2);

/// Bytes of a stored element.
[[nodiscard]] constexpr std::size_t stored_bytes(Precision format) noexcept {
  return format == Precision::fp32 ? sizeof(float) : sizeof(std::uint16_t);
}

/// work(T{}) with the type that stores `format`.
template <typename Work>
void with_stored(Precision format, const Work& work) {
  if (format == Precision::bf16) {
    work(Bfloat{});
  } else if (format == Precision::fp16) {
    work(Half{});
  } else {
    work(float{});
  }
}

}  // namespace paceline
