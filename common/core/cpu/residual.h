// SPDX-License-Identifier: Apache-2.0
// Residual blocks that a step may leave out.
#pragma once

#include <memory>

#include "common/core/layer.h"
#include "common/core/precision.h"

namespace paceline {

/// y = x + branch(x) (He et al. 2016). With stochastic depth (Huang et al. 2016) a step leaves the
/// block out with chance `drop_path` (its caller's decision), so y = x; evaluation multiplies the
/// branch by 1 − drop_path. Has the branch's name and parameters; the branch's output and its input
/// gradient are rounded to `precision` before they are added. Throws Error when the branch changes
/// the shape.
[[nodiscard]] std::unique_ptr<Layer> make_residual(std::unique_ptr<Layer> branch, double drop_path,
                                                   Precision precision);

}  // namespace paceline
