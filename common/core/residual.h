// SPDX-License-Identifier: Apache-2.0
// Residual blocks: one that a step may leave out, and ResNet's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/core/layer.h"
#include "common/core/layer_store.h"

namespace paceline {

/// y = x + branch(x) (He et al. 2016). With stochastic depth (Huang et al. 2016) a step leaves the
/// block out with chance `drop_path` (its caller's decision), so y = x; evaluation multiplies the
/// branch by 1 − drop_path. Has the branch's name and parameters; the branch's output and its input
/// gradient are rounded as the store says before they are added. Throws Error when the branch
/// changes the shape.
[[nodiscard]] std::unique_ptr<Layer> make_residual(std::unique_ptr<Layer> branch, double drop_path,
                                                   std::shared_ptr<LayerStore> store);

/// ResNet's block, y = relu(branch(x) + shortcut(x)) (He et al. 2016), where the branch ends in a
/// norm with Activation::relu and ReluMask::here: it adds the shortcut before its ReLU. An empty
/// `shortcut` is x itself. Rounds as the store says around each of the layers; the sum is rounded
/// after the ReLU only. Parameters are "LAYER.TENSOR", of the branch and then of the shortcut.
/// Throws Error when the two ways give different shapes.
[[nodiscard]] std::unique_ptr<Layer> make_resnet_block(std::string name,
                                                       std::vector<std::unique_ptr<Layer>> branch,
                                                       std::vector<std::unique_ptr<Layer>> shortcut,
                                                       std::shared_ptr<LayerStore> store);

}  // namespace paceline
