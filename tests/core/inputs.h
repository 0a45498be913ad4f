// SPDX-License-Identifier: Apache-2.0
// Made-up values for tests, the same as make_golden.py makes: element i of stream `key` is
// uniform01(key, i) mapped to [-1, 1).
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "common/core/random.h"

namespace paceline::test {

inline std::vector<float> values(std::uint64_t key, std::size_t n, float scale = 1.0F) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = scale * (2.0F * uniform01(stream_key(key, "values"), i) - 1.0F);
  }
  return out;
}

inline std::vector<std::int32_t> labels(std::uint64_t key, std::size_t n, int classes) {
  std::vector<std::int32_t> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::int32_t>(splitmix64(stream_key(key, "labels") + i) %
                                       static_cast<std::uint64_t>(classes));
  }
  return out;
}

template <typename T>
std::vector<double> widen(const T& from) {
  return {from.begin(), from.end()};
}

/// Largest |a − b| over the largest |b|; infinite where something is not finite.
inline double relative_error(std::span<const float> a, std::span<const double> b) {
  double worst = 0.0;
  double top = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!std::isfinite(error)) {
      return INFINITY;
    }
    worst = std::max(worst, error);
    top = std::max(top, std::abs(b[i]));
  }
  return top > 0.0 ? worst / top : worst;
}

}  // namespace paceline::test
