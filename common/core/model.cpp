// SPDX-License-Identifier: Apache-2.0
#include "common/core/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "common/core/cpu/layers.h"
#include "common/core/cpu/norm.h"
#include "common/core/cpu/residual.h"
#include "common/core/sequential.h"

namespace paceline {

namespace {

NormKind norm_kind(const std::string& name) {
  return name == "batch"        ? NormKind::batch
         : name == "sync_batch" ? NormKind::sync_batch
         : name == "group"      ? NormKind::group
                                : NormKind::layer;
}

/// Where the processor lacks a format, products are computed in fp32 from values rounded to it.
Precision operands(const ModelOptions& options) {
  return native_precision(options.precision) ? options.precision : Precision::fp32;
}

/// Appends layers, each fed by the one before.
class Chain {
 public:
  Chain(SampleShape input, const ModelOptions& options)
      : shape_(input), options_(options), context_(make_dnnl_context(operands(options))) {}

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
    add(make_conv2d(context_, name, shape_, outputs, own, mask));
    return normalised() ? norm_and_relu(name, mask) : *this;
  }
  Chain& residual_linear(const char* name) {
    return add(
        make_residual(make_linear(context_, name, shape_, shape_.elements(), Activation::relu),
                      options_.drop_path, options_.precision));
  }
  Chain& max_pool(const char* name) { return add(make_max_pool(name, shape_, true)); }

  std::unique_ptr<Model> finish(std::string_view name) {
    return std::make_unique<Sequential>(std::string(name), std::move(layers_),
                                        as_shared_scratch(context_), options_);
  }

 private:
  [[nodiscard]] bool normalised() const { return options_.norm.kind != "none"; }

  Chain& linear(const char* name, std::int64_t outputs, Activation activation) {
    if (needs_flatten(shape_)) {
      add(make_flatten(context_, "flatten", shape_));
    }
    return add(make_linear(context_, name, shape_, outputs, activation));
  }
  Chain& norm_and_relu(const char* of, ReluMask mask) {
    const NormConfig& norm = options_.norm;
    return add(make_norm(fmt::format("{}_norm", of), shape_,
                         {norm_kind(norm.kind), norm.groups, norm.momentum, Activation::relu, mask,
                          options_.reducer}));
  }
  Chain& add(std::unique_ptr<Layer> layer) {
    shape_ = layer->output_shape();
    layers_.push_back(std::move(layer));
    return *this;
  }

  SampleShape shape_;
  const ModelOptions& options_;
  std::shared_ptr<DnnlContext> context_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"softmax", "mlp", "cnn", "resmlp"};
  return names;
}

namespace {

void check_abilities(std::string_view name, const ModelOptions& options) {
  if (std::ranges::find(model_names(), name) == model_names().end()) {
    throw ConfigError(fmt::format("model: {}, allowed {}", name, fmt::join(model_names(), ", ")));
  }
  if (options.norm.kind != "none" && name != "mlp" && name != "cnn") {
    throw ConfigError(fmt::format(
        "norm.kind = \"{}\" needs model = mlp or cnn: {} has no layer that is followed by a norm",
        options.norm.kind, name));
  }
  if (options.drop_path > 0.0 && name != "resmlp") {
    throw ConfigError(
        fmt::format("train.drop_path = {} needs model = resmlp: {} has no block to leave out",
                    options.drop_path, name));
  }
}

}  // namespace

std::unique_ptr<Model> make_model(std::string_view name, SampleShape input, int classes,
                                  const ModelOptions& options) {
  if (input.height < 1 || input.width < 1 || input.channels < 1 || classes < 1 ||
      options.threads < 1) {
    throw ConfigError(
        fmt::format("model {}: input {}x{}x{}, {} classes, {} threads; each must be at least 1",
                    name, input.height, input.width, input.channels, classes, options.threads));
  }
  check_abilities(name, options);
  Chain chain(input, options);
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
