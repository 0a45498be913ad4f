// SPDX-License-Identifier: Apache-2.0
// The module's launches, defined in row_kernels.cu and update.cu; see abi.h.
#pragma once

#include "common/core/cuda/abi.h"

namespace paceline::cuda {

int bias_gradient(const kernels::BiasGradient* functor, void* stream);
int max_pool_forward(const kernels::MaxPoolForward* functor, std::int64_t rows, void* stream);
int max_pool_backward(const kernels::MaxPoolBackward* functor, std::int64_t rows, void* stream);
int softmax_cross_entropy(const kernels::SoftmaxCrossEntropy* functor, std::int64_t rows,
                          void* stream);
int update(const OptimizerSpec* spec, const UpdateInfo* info,
           const kernels::UpdateOperands* operands, std::int64_t elements, void* stream);

}  // namespace paceline::cuda
