// SPDX-License-Identifier: Apache-2.0
// Tensors in host memory as the double of the CUDA module computes with them: in double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/half.h"
#include "common/core/precision.h"

namespace paceline::test {

/// Elements of a tensor in one of the formats.
class Elements {
 public:
  Elements(const void* memory, Precision format)
      : memory_(const_cast<void*>(memory)), format_(format) {}
  [[nodiscard]] double get(std::int64_t i) const {
    if (format_ == Precision::fp32) {
      return static_cast<double>(static_cast<const float*>(memory_)[i]);
    }
    const std::uint16_t bits = static_cast<const std::uint16_t*>(memory_)[i];
    return static_cast<double>(format_ == Precision::bf16 ? from_bfloat(bits) : from_half(bits));
  }
  void set(std::int64_t i, double value) const {
    const auto rounded = static_cast<float>(value);
    if (format_ == Precision::fp32) {
      static_cast<float*>(memory_)[i] = rounded;
    } else {
      static_cast<std::uint16_t*>(memory_)[i] =
          format_ == Precision::bf16 ? to_bfloat(rounded) : to_half(rounded);
    }
  }

 private:
  void* memory_;
  Precision format_;
};

inline void store(const std::vector<double>& sums, const Elements& to) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    to.set(static_cast<std::int64_t>(i), sums[i]);
  }
}

inline std::vector<double> zeros(std::int64_t n) {
  return std::vector<double>(static_cast<std::size_t>(n));
}

inline double& element(std::vector<double>& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

}  // namespace paceline::test
