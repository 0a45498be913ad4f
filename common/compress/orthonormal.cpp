// SPDX-License-Identifier: Apache-2.0
#include "common/compress/orthonormal.h"

#include <cmath>

namespace paceline::compress {

namespace {

constexpr double kDependent = 1e-6;

double dot(const float* a, const float* b, std::size_t n) noexcept {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < n; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

/// y += a·x.
void add_scaled(float a, const float* __restrict x, float* __restrict y, std::size_t n) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    y[i] += a * x[i];
  }
}

}  // namespace

void orthonormalise(std::span<float> columns, std::size_t rows) {
  const std::size_t count = rows == 0 ? 0 : columns.size() / rows;
  for (std::size_t k = 0; k < count; ++k) {
    float* column = columns.data() + k * rows;
    const double before = std::sqrt(dot(column, column, rows));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < k; ++j) {
        const float* other = columns.data() + j * rows;
        add_scaled(static_cast<float>(-dot(other, column, rows)), other, column, rows);
      }
    }
    const double after = std::sqrt(dot(column, column, rows));
    // A NaN is no dependence: it stays to be seen.
    const bool dependent = after <= kDependent * before;
    const auto factor = static_cast<float>(dependent ? 0.0 : 1.0 / after);
    for (std::size_t i = 0; i < rows; ++i) {
      column[i] *= factor;
    }
  }
}

void times(std::span<const float> m, std::size_t columns, std::span<const float> q,
           std::span<float> p) {
  const std::size_t rows = m.size() / columns;
  const std::size_t count = q.size() / columns;
  for (std::size_t i = 0; i < rows; ++i) {
    const float* row = m.data() + i * columns;
    for (std::size_t k = 0; k < count; ++k) {
      const float* other = q.data() + k * columns;
      float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
      for (std::size_t j = 0; j < columns; ++j) {
        sum += row[j] * other[j];
      }
      p[k * rows + i] = sum;
    }
  }
}

void transposed_times(std::span<const float> m, std::size_t columns, std::span<const float> p,
                      std::span<float> q) {
  const std::size_t rows = m.size() / columns;
  const std::size_t count = q.size() / columns;
  for (float& value : q) {
    value = 0.0F;
  }
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < count; ++k) {
      add_scaled(p[k * rows + i], m.data() + i * columns, q.data() + k * columns, columns);
    }
  }
}

void add_outer(std::span<const float> p, std::span<const float> q, std::size_t columns,
               float factor, std::span<float> m) {
  const std::size_t rows = m.size() / columns;
  const std::size_t count = q.size() / columns;
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < count; ++k) {
      add_scaled(factor * p[k * rows + i], q.data() + k * columns, m.data() + i * columns, columns);
    }
  }
}

}  // namespace paceline::compress
