// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "common/core/layer_factory.h"
#include "common/core/residual.h"
#include "common/core/resnet.h"

namespace paceline {

namespace {

/// Appends layers, each fed by the one before.
class Chain {
 public:
  Chain(SampleShape input, const ModelOptions& options, LayerFactory& factory)
      : shape_(input), options_(options), factory_(factory) {}

  /// Flattens first where that changes the order.
  Chain& linear(const char* name, std::int64_t outputs) {
    return linear(name, outputs, Activation::none);
  }
  Chain& hidden_linear(const char* name, std::int64_t outputs) {
    if (!normalised()) {
      return linear(name, outputs, Activation::relu);
    }
    return linear(name, outputs, Activation::none).norm_and_relu(name, ReluMask::here);
  }
  Chain& hidden_conv2d(const char* name, std::int64_t outputs, ReluMask mask) {
    const Activation own = normalised() ? Activation::none : Activation::relu;
    add(factory_.conv2d(name, shape_, {.outputs = outputs}, own, mask));
    return normalised() ? norm_and_relu(name, mask) : *this;
  }
  Chain& residual_linear(const char* name) {
    return add(make_residual(factory_.linear(name, shape_, shape_.elements(), Activation::relu),
                             options_.drop_path, factory_.store()));
  }
  Chain& max_pool(const char* name) { return add(factory_.max_pool(name, shape_, true)); }

  std::unique_ptr<Model> finish(std::string_view name) {
    return factory_.finish(std::string(name), std::move(layers_));
  }

 private:
  [[nodiscard]] bool normalised() const { return options_.norm.kind != "none"; }

  Chain& linear(const char* name, std::int64_t outputs, Activation activation) {
    if (needs_flatten(shape_)) {
      add(factory_.flatten("flatten", shape_));
    }
    return add(factory_.linear(name, shape_, outputs, activation));
  }
  Chain& norm_and_relu(const char* of, ReluMask mask) {
    return add(factory_.norm(fmt::format("{}_norm", of), shape_,
                             norm_setup(options_, Activation::relu, mask)));
  }
  Chain& add(std::unique_ptr<Layer> layer) {
    shape_ = layer->output_shape();
    layers_.push_back(std::move(layer));
    return *this;
  }

  SampleShape shape_;
  const ModelOptions& options_;
  LayerFactory& factory_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

bool is_resnet(std::string_view name) {
  return name == "resnet20" || name == "resnet50";
}

/// With norm.kind = auto the model's own.
ModelOptions resolved(std::string_view name, ModelOptions options) {
  if (options.norm.kind == "auto") {
    options.norm.kind = is_resnet(name) ? "batch" : "none";
  }
  return options;
}

void check_abilities(std::string_view name, const ModelOptions& options) {
  if (std::ranges::find(model_names(), name) == model_names().end()) {
    throw ConfigError(fmt::format("model: {}, allowed {}", name, fmt::join(model_names(), ", ")));
  }
  if (is_resnet(name) && options.norm.kind == "none") {
    throw ConfigError(fmt::format(
        "norm.kind = \"none\" with model = {}: its blocks end in a norm; allowed: auto (batch), "
        "batch, sync_batch, group, layer",
        name));
  }
  if (options.norm.kind != "none" && name != "mlp" && name != "cnn" && !is_resnet(name)) {
    throw ConfigError(fmt::format(
        "norm.kind = \"{}\" needs model = mlp, cnn, resnet20 or resnet50: {} has no layer that is "
        "followed by a norm",
        options.norm.kind, name));
  }
  if (options.drop_path > 0.0 && name != "resmlp") {
    throw ConfigError(
        fmt::format("train.drop_path = {} needs model = resmlp: {} has no block to leave out",
                    options.drop_path, name));
  }
}

}  // namespace

NormSetup norm_setup(const ModelOptions& options, Activation activation, ReluMask mask) {
  const NormConfig& norm = options.norm;
  const NormKind kind = norm.kind == "batch"        ? NormKind::batch
                        : norm.kind == "sync_batch" ? NormKind::sync_batch
                        : norm.kind == "group"      ? NormKind::group
                                                    : NormKind::layer;
  return {kind, norm.groups, norm.momentum, activation, mask, options.reducer};
}

ModelOptions checked_options(std::string_view name, SampleShape input, int classes,
                             ModelOptions options) {
  if (input.height < 1 || input.width < 1 || input.channels < 1 || classes < 1 ||
      options.threads < 1) {
    throw ConfigError(
        fmt::format("model {}: input {}x{}x{}, {} classes, {} threads; each must be at least 1",
                    name, input.height, input.width, input.channels, classes, options.threads));
  }
  ModelOptions own = resolved(name, std::move(options));
  check_abilities(name, own);
  return own;
}

std::unique_ptr<Model> build_model(std::string_view name, SampleShape input, int classes,
                                   const ModelOptions& options, LayerFactory& factory) {
  if (is_resnet(name)) {
    return build_resnet(name, resnet_plan(name), input, classes, options, factory);
  }
  Chain chain(input, options, factory);
  if (name == "softmax") {
    return chain.linear("fc", classes).finish(name);
  }
  if (name == "mlp") {
    return chain.hidden_linear("fc1", 512)
        .hidden_linear("fc2", 512)
        .linear("fc3", classes)
        .finish(name);
  }
  if (name == "resmlp") {
    return chain.hidden_linear("fc1", 256)
        .residual_linear("block1")
        .residual_linear("block2")
        .residual_linear("block3")
        .linear("head", classes)
        .finish(name);
  }
  return chain.hidden_conv2d("conv1", 32, ReluMask::here)
      .hidden_conv2d("conv2", 64, ReluMask::above)
      .max_pool("pool")
      .hidden_linear("fc1", 128)
      .linear("fc2", classes)
      .finish(name);
}

}  // namespace paceline
