// SPDX-License-Identifier: Apache-2.0
// Models on a GPU.
#pragma once

#include <memory>
#include <string_view>

#include "common/core/gpu/gpu.h"
#include "common/core/layer_factory.h"

namespace paceline {

/// What make_model makes on the CPU, with the same layers, parameters and first values: softmax,
/// mlp, cnn, resmlp, resnet20, resnet50, gpt. Activations are stored in options.precision. Takes
/// and gives memory of `gpu`, which outlives it (see gpu_sequential.h). Throws ConfigError as
/// make_model does, and for a model that only runs on the CPU.
[[nodiscard]] std::unique_ptr<Model> make_gpu_model(std::string_view name, SampleShape input,
                                                    int classes, const ModelOptions& options,
                                                    Gpu& gpu);

/// The layers of one model on `gpu`, for builders and tests.
[[nodiscard]] std::unique_ptr<LayerFactory> make_gpu_factory(const ModelOptions& options, Gpu& gpu);

}  // namespace paceline
