// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/functors.h"
#include "common/core/cuda/launch.cuh"
#include "common/core/cuda/launches.h"

namespace paceline::cuda {

int each(int functor_id, const void* functor, std::int64_t n, void* stream) {
  return launch_listed<EachFunctors>(
      functor_id, functor, [&](const auto& listed) { return for_each(n, listed, stream); });
}

}  // namespace paceline::cuda
