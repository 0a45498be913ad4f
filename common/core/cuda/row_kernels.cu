// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/functors.h"
#include "common/core/cuda/launch.cuh"
#include "common/core/cuda/launches.h"

namespace paceline::cuda {

int rows(int functor_id, const void* functor, std::int64_t count, void* stream) {
  return launch_listed<RowFunctors>(
      functor_id, functor, [&](const auto& listed) { return for_rows(count, listed, stream); });
}

}  // namespace paceline::cuda
