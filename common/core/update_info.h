// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace paceline {

/// One update: where the bits come from besides weights and gradients.
struct UpdateInfo {
  std::int64_t step = 0;  ///< updates this range has seen before; Adam's bias correction
  float lr = 0.0F;
  float gradient_scale = 1.0F;  ///< multiplies the gradient sum: 1 / samples
};

}  // namespace paceline
