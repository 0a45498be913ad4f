// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/launch.cuh"
#include "common/core/cuda/launches.h"

namespace paceline::cuda {

int bias_gradient(const kernels::BiasGradient* functor, void* stream) {
  const std::int64_t tiles = (functor->columns + kernels::kColumnTile - 1) / kernels::kColumnTile;
  return for_rows(tiles, *functor, stream);
}

int max_pool_forward(const kernels::MaxPoolForward* functor, std::int64_t rows, void* stream) {
  return for_rows(rows, *functor, stream);
}

int max_pool_backward(const kernels::MaxPoolBackward* functor, std::int64_t rows, void* stream) {
  return for_rows(rows, *functor, stream);
}

int softmax_cross_entropy(const kernels::SoftmaxCrossEntropy* functor, std::int64_t rows,
                          void* stream) {
  return for_rows(rows, *functor, stream);
}

}  // namespace paceline::cuda
