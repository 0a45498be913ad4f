// SPDX-License-Identifier: Apache-2.0
// What cuBLASLt's epilogues do not: they read a bias in the output's type only, and not every
// product has an algorithm with one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/core/cuda/launch.cuh"
#include "common/core/cuda/math_abi.h"
#include "common/core/kernels_transformer.h"

namespace paceline::cuda {

/// to[i] = from[i], rounded to T.
template <typename T>
struct RoundBias {
  const float* from;
  T* to;
  __device__ void operator()(std::int64_t i) const { to[i] = static_cast<T>(from[i]); }
};

/// c = activation(c + bias), element i of all the batch's matrices.
template <typename T>
struct FinishProduct {
  T* c;
  const float* bias;
  Epilogue epilogue;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stride;
  std::int64_t step;

  __device__ void operator()(std::int64_t i) const {
    const std::int64_t column = i % columns;
    const std::int64_t row = i / columns;
    T& at = c[row / rows * step + row % rows * stride + column];
    const float x = static_cast<float>(at) + bias[column];
    float y = x;
    if (epilogue == Epilogue::bias_relu) {
      y = x > 0.0F ? x : 0.0F;
    } else if (epilogue == Epilogue::bias_gelu) {
      y = 0.5F * x * (1.0F + kernels::gelu_tanh(x));
    }
    at = static_cast<T>(y);
  }
};

/// use(T{}) with T the type of the format.
template <typename Use>
int with_type(Precision format, const Use& use) {
  switch (format) {
    case Precision::bf16:
      return use(__nv_bfloat16{});
    case Precision::fp16:
      return use(__half{});
    default:
      return use(float{});
  }
}

/// to[columns] in `format` = bias.
inline int round_bias(const float* bias, void* to, Precision format, std::int64_t columns,
                      cudaStream_t stream) {
  return with_type(format, [&](auto typed) {
    using T = decltype(typed);
    return for_each(columns, RoundBias<T>{bias, static_cast<T*>(to)}, stream);
  });
}

/// Applies the bias and the activation of `p` to its C.
inline int finish_product(const Matmul& p, cudaStream_t stream) {
  const Precision format = p.fp32_output != 0 ? Precision::fp32 : p.format;
  return with_type(format, [&](auto typed) {
    using T = decltype(typed);
    return for_each(p.batch * p.rows * p.columns,
                    FinishProduct<T>{static_cast<T*>(p.c), p.bias, p.epilogue, p.rows, p.columns,
                                     p.c_stride, p.c_step},
                    stream);
  });
}

}  // namespace paceline::cuda
