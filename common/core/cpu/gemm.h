// SPDX-License-Identifier: Apache-2.0
// Products of matrices that lie in larger ones.
#pragma once

#include <cstdint>

namespace paceline {

/// A row-major operand: element (i, j) at data[i·stride + j], or, transposed, at data[j·stride +
/// i].
struct GemmOperand {
  const float* data;
  std::int64_t stride;
  bool transposed = false;
};

/// c (rows × columns, c_stride apart) = a·b, or += with `accumulate`; a is rows × inner, b inner ×
/// columns. oneDNN's sgemm on the calling thread's OpenMP threads. Throws Error if that fails.
void gemm(std::int64_t rows, std::int64_t columns, std::int64_t inner, const GemmOperand& a,
          const GemmOperand& b, float* c, std::int64_t c_stride, bool accumulate = false);

}  // namespace paceline
