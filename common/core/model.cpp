// SPDX-License-Identifier: Apache-2.0
#include "common/core/model.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/cpu/layers.h"
#include "common/core/sequential.h"

namespace paceline {

namespace {

/// Appends layers, each fed by the one before.
class Chain {
 public:
  Chain(SampleShape input, int threads)
      : shape_(input), context_(make_dnnl_context()), threads_(threads) {}

  /// Flattens first where that changes the order.
  Chain& linear(const char* name, std::int64_t outputs, Activation activation) {
    if (needs_flatten(shape_)) {
      add(make_flatten(context_, "flatten", shape_));
    }
    return add(make_linear(context_, name, shape_, outputs, activation));
  }
  Chain& conv2d(const char* name, std::int64_t outputs, ReluMask mask) {
    return add(make_conv2d(context_, name, shape_, outputs, Activation::relu, mask));
  }
  Chain& max_pool(const char* name) { return add(make_max_pool(name, shape_, true)); }

  std::unique_ptr<Model> finish(std::string_view name) {
    return std::make_unique<Sequential>(std::string(name), std::move(layers_),
                                        as_shared_scratch(context_), threads_);
  }

 private:
  Chain& add(std::unique_ptr<Layer> layer) {
    shape_ = layer->output_shape();
    layers_.push_back(std::move(layer));
    return *this;
  }

  SampleShape shape_;
  std::shared_ptr<DnnlContext> context_;
  int threads_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"softmax", "mlp", "cnn"};
  return names;
}

std::unique_ptr<Model> make_model(std::string_view name, SampleShape input, int classes,
                                  int threads) {
  if (input.height < 1 || input.width < 1 || input.channels < 1 || classes < 1 || threads < 1) {
    throw ConfigError(
        fmt::format("model {}: input {}x{}x{}, {} classes, {} threads; each must be at least 1",
                    name, input.height, input.width, input.channels, classes, threads));
  }
  Chain chain(input, threads);
  if (name == "softmax") {
    return chain.linear("fc", classes, Activation::none).finish(name);
  }
  if (name == "mlp") {
    return chain.linear("fc1", 512, Activation::relu)
        .linear("fc2", 512, Activation::relu)
        .linear("fc3", classes, Activation::none)
        .finish(name);
  }
  if (name == "cnn") {
    return chain.conv2d("conv1", 32, ReluMask::here)
        .conv2d("conv2", 64, ReluMask::above)
        .max_pool("pool")
        .linear("fc1", 128, Activation::relu)
        .linear("fc2", classes, Activation::none)
        .finish(name);
  }
  throw ConfigError(fmt::format("model: {}, allowed {}", name, fmt::join(model_names(), ", ")));
}

}  // namespace paceline
