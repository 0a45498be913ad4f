// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/nccl.h"

namespace paceline::cuda {

constinit const NcclApi kNcclApi{};

}  // namespace paceline::cuda
