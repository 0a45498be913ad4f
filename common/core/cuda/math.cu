// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/math.h"

namespace paceline::cuda {

constinit const MathApi kMathApi{};

}  // namespace paceline::cuda
