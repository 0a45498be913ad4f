// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/gemm.h"

#include <fmt/format.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "common/base/error.h"

namespace paceline {

void gemm(std::int64_t rows, std::int64_t columns, std::int64_t inner, const GemmOperand& a,
          const GemmOperand& b, float* c, std::int64_t c_stride, bool accumulate) {
  const dnnl::status status =
      dnnl::sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', rows, columns, inner, 1.0F,
                  a.data, a.stride, b.data, b.stride, accumulate ? 1.0F : 0.0F, c, c_stride);
  if (status != dnnl::status::success) {
    throw Error(fmt::format("sgemm {}x{}x{} failed with status {}", rows, columns, inner,
                            static_cast<int>(status)));
  }
}

}  // namespace paceline
