// SPDX-License-Identifier: Apache-2.0
// The module's products and convolutions, defined in math.cu; see math_abi.h.
#pragma once

#include "common/core/cuda/math_abi.h"

namespace paceline::cuda {

extern const MathApi kMathApi;

}  // namespace paceline::cuda
