// SPDX-License-Identifier: Apache-2.0
#include "common/base/half.h"

#include <immintrin.h>

#include <bit>

#if !defined(__F16C__)
#error "x86-64-v3 (AVX2, F16C) or newer is needed"
#endif

namespace paceline {

namespace {

constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
constexpr std::size_t kLanes = 8;

__m128i half_of(__m256 values) noexcept {
  return _mm256_cvtps_ph(values, kNearest);
}

__m256 load_half(const std::uint16_t* from) noexcept {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

void store_half(std::uint16_t* to, __m256 values) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), half_of(values));
}

/// Written so that compilers turn it into vector instructions.
std::uint32_t bfloat_bits(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return (nan ? bits | 0x00400000U : rounded) >> 16U;
}

}  // namespace

std::uint16_t to_half(float value) noexcept {
  return static_cast<std::uint16_t>(_cvtss_sh(value, kNearest));
}

float from_half(std::uint16_t bits) noexcept {
  return _cvtsh_ss(bits);
}

std::uint16_t to_bfloat(float value) noexcept {
  return static_cast<std::uint16_t>(bfloat_bits(value));
}

float from_bfloat(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

void to_half(std::span<const float> in, float scale, std::span<std::uint16_t> out) noexcept {
  const __m256 factor = _mm256_set1_ps(scale);
  const std::size_t whole = in.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    store_half(out.data() + i, _mm256_mul_ps(_mm256_loadu_ps(in.data() + i), factor));
  }
  for (std::size_t i = whole; i < in.size(); ++i) {
    out[i] = to_half(in[i] * scale);
  }
}

void from_half(std::span<const std::uint16_t> in, float scale, std::span<float> out) noexcept {
  const __m256 factor = _mm256_set1_ps(scale);
  const std::size_t whole = in.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    _mm256_storeu_ps(out.data() + i, _mm256_mul_ps(load_half(in.data() + i), factor));
  }
  for (std::size_t i = whole; i < in.size(); ++i) {
    out[i] = from_half(in[i]) * scale;
  }
}

void to_bfloat(std::span<const float> in, float scale, std::span<std::uint16_t> out) noexcept {
  const float* from = in.data();
  std::uint16_t* to = out.data();
#pragma omp simd
  for (std::size_t i = 0; i < in.size(); ++i) {
    to[i] = static_cast<std::uint16_t>(bfloat_bits(from[i] * scale));
  }
}

void from_bfloat(std::span<const std::uint16_t> in, float scale, std::span<float> out) noexcept {
  const std::uint16_t* from = in.data();
  float* to = out.data();
#pragma omp simd
  for (std::size_t i = 0; i < in.size(); ++i) {
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16U) * scale;
  }
}

void round_to_half(std::span<float> values) noexcept {
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    float* at = values.data() + i;
    _mm256_storeu_ps(at, _mm256_cvtph_ps(half_of(_mm256_loadu_ps(at))));
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    values[i] = from_half(to_half(values[i]));
  }
}

void round_to_bfloat(std::span<float> values) noexcept {
  float* at = values.data();
#pragma omp simd
  for (std::size_t i = 0; i < values.size(); ++i) {
    at[i] = std::bit_cast<float>(bfloat_bits(at[i]) << 16U);
  }
}

void add_half(std::uint16_t* dst, const std::uint16_t* src, std::size_t count) noexcept {
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    store_half(dst + i, _mm256_add_ps(load_half(dst + i), load_half(src + i)));
  }
  for (std::size_t i = whole; i < count; ++i) {
    dst[i] = to_half(from_half(dst[i]) + from_half(src[i]));
  }
}

void add_bfloat(std::uint16_t* dst, const std::uint16_t* src, std::size_t count) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = std::bit_cast<float>(static_cast<std::uint32_t>(dst[i]) << 16U) +
                      std::bit_cast<float>(static_cast<std::uint32_t>(src[i]) << 16U);
    dst[i] = static_cast<std::uint16_t>(bfloat_bits(sum));
  }
}

}  // namespace paceline
