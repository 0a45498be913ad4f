// SPDX-License-Identifier: Apache-2.0
// Models are built once for all devices: what they are made of comes from the device's factory.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/layer_setup.h"
#include "common/core/layer_store.h"
#include "common/core/model_options.h"

namespace paceline {

/// Makes the layers of one model; cpu/layers.h and cpu/norm.h say what each computes and throws.
class LayerFactory {
 public:
  using Made = std::unique_ptr<Layer>;
  LayerFactory() = default;
  virtual ~LayerFactory() = default;
  LayerFactory(const LayerFactory&) = delete;
  LayerFactory& operator=(const LayerFactory&) = delete;

  virtual Made linear(std::string name, SampleShape input, std::int64_t outputs,
                      Activation activation) = 0;
  virtual Made flatten(std::string name, SampleShape input) = 0;
  virtual Made conv2d(std::string name, SampleShape input, const ConvShape& shape,
                      Activation activation, ReluMask mask) = 0;
  virtual Made norm(std::string name, SampleShape input, const NormSetup& setup) = 0;
  virtual Made max_pool(std::string name, SampleShape input, bool after_relu) = 0;
  virtual Made window_max_pool(std::string name, SampleShape input, std::int64_t kernel,
                               std::int64_t stride, std::int64_t padding) = 0;
  virtual Made global_average(std::string name, SampleShape input) = 0;
  /// For the layers that are made of these (residual.h).
  virtual std::shared_ptr<LayerStore> store() = 0;
  /// The model whose layers these are; the factory makes no other.
  virtual std::unique_ptr<Model> finish(std::string name, std::vector<Made> layers) = 0;
};

/// With norm.kind = auto the model's own. Throws ConfigError for an unknown name and for what
/// check_model_options refuses of shapes and layers.
[[nodiscard]] ModelOptions checked_options(std::string_view name, SampleShape input, int classes,
                                           ModelOptions options);

/// Any model but logistic and gpt, with options from checked_options().
[[nodiscard]] std::unique_ptr<Model> build_model(std::string_view name, SampleShape input,
                                                 int classes, const ModelOptions& options,
                                                 LayerFactory& factory);

/// options.norm.kind is one of batch, sync_batch, group, layer.
[[nodiscard]] NormSetup norm_setup(const ModelOptions& options, Activation activation,
                                   ReluMask mask);

}  // namespace paceline
