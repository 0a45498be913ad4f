// SPDX-License-Identifier: Apache-2.0
// Residual networks (He, Zhang, Ren & Sun 2016) of any depth and width.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "common/core/layer_factory.h"
#include "common/core/model.h"

namespace paceline {

struct ResNetPlan {
  bool bottleneck = false;  ///< blocks 1×1, 3×3, 1×1 with 4 times the outputs; else 3×3, 3×3
  bool large_stem = false;  ///< 7×7 stride 2 and 3×3 maximum stride 2; else 3×3 stride 1
  std::int64_t width = 16;  ///< channels of the first stage; each later stage doubles them
  std::vector<int> blocks;  ///< of each stage; all stages but the first begin with stride 2
};

/// resnet20: the CIFAR form, 3 stages of 3 basic blocks with 16, 32 and 64 channels, 272 474
/// parameters for 10 classes. resnet50: v1.5, the stride on a bottleneck's 3×3 convolution;
/// 25 557 032 parameters for 1000 classes.
[[nodiscard]] ResNetPlan resnet_plan(std::string_view name);

/// Convolutions have no bias, a norm follows each of them. Where a block changes the shape its
/// shortcut is a 1×1 convolution and a norm (the paper's option B). Ends in the mean over all
/// positions and a linear layer. Each block is one layer of the model: "layer2.0" holds
/// "layer2.0.conv1.weight", "layer2.0.conv1_norm.gamma", … "layer2.0.shortcut.weight". Throws
/// ConfigError for what the layers refuse. options.norm.kind is not auto or none.
[[nodiscard]] std::unique_ptr<Model> build_resnet(std::string_view name, const ResNetPlan& plan,
                                                  SampleShape input, int classes,
                                                  const ModelOptions& options,
                                                  LayerFactory& factory);
/// The same on the CPU.
[[nodiscard]] std::unique_ptr<Model> make_resnet(std::string_view name, const ResNetPlan& plan,
                                                 SampleShape input, int classes,
                                                 const ModelOptions& options);

}  // namespace paceline
