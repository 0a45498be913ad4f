// SPDX-License-Identifier: Apache-2.0
// The products of host_module.h: the equations of math_abi.h as plain loops, summed in double.
#pragma once

#include "common/core/cuda/math_abi.h"

namespace paceline::test {

void host_matmul(const cuda::Matmul& product);
void host_convolve(const cuda::Convolution& shape, const void* x, const void* filter, void* y);
void host_input_gradient(const cuda::Convolution& shape, const void* dy, const void* filter,
                         void* dx);
void host_filter_gradient(const cuda::Convolution& shape, const void* x, const void* dy,
                          void* d_filter);
void host_attention(const cuda::Attention& shape, const void* qkv, void* out, float* statistics);
void host_attention_gradient(const cuda::Attention& shape, const void* qkv, const void* out,
                             const float* statistics, const void* d_out, void* d_qkv);

}  // namespace paceline::test
