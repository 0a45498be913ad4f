// SPDX-License-Identifier: Apache-2.0
#include "common/core/resnet.h"

#include <fmt/format.h>

#include "common/core/cpu/cpu_factory.h"
#include "common/core/residual.h"

namespace paceline {

namespace {

constexpr std::int64_t kExpansion = 4;  // outputs of a bottleneck over its width

using Layers = std::vector<std::unique_ptr<Layer>>;

class ResNetBuilder {
 public:
  ResNetBuilder(const ResNetPlan& plan, SampleShape input, const ModelOptions& options,
                LayerFactory& factory)
      : plan_(plan), options_(options), factory_(factory), shape_(input) {}

  void stem() {
    const std::int64_t kernel = plan_.large_stem ? 7 : 3;
    const std::int64_t stride = plan_.large_stem ? 2 : 1;
    convolve(layers_, "conv1", shape_, {plan_.width, kernel, stride, kernel / 2, false}, true);
    if (plan_.large_stem) {
      layers_.push_back(
          factory_.window_max_pool("maxpool", layers_.back()->output_shape(), 3, 2, 1));
    }
    shape_ = layers_.back()->output_shape();
  }

  void block(std::string name, std::int64_t width, std::int64_t stride) {
    const std::int64_t outputs = plan_.bottleneck ? kExpansion * width : width;
    Layers branch;
    if (plan_.bottleneck) {
      convolve(branch, "conv1", shape_, {width, 1, 1, 0, false}, true);
      convolve(branch, "conv2", last(branch), {width, 3, stride, 1, false}, true);
      convolve(branch, "conv3", last(branch), {outputs, 1, 1, 0, false}, true);
    } else {
      convolve(branch, "conv1", shape_, {width, 3, stride, 1, false}, true);
      convolve(branch, "conv2", last(branch), {outputs, 3, 1, 1, false}, true);
    }
    Layers shortcut;
    if (stride != 1 || shape_.channels != outputs) {
      convolve(shortcut, "shortcut", shape_, {outputs, 1, stride, 0, false}, false);
    }
    layers_.push_back(make_resnet_block(std::move(name), std::move(branch), std::move(shortcut),
                                        factory_.store()));
    shape_ = layers_.back()->output_shape();
  }

  std::unique_ptr<Model> finish(std::string_view name, int classes) {
    layers_.push_back(factory_.global_average("avgpool", shape_));
    layers_.push_back(
        factory_.linear("fc", layers_.back()->output_shape(), classes, Activation::none));
    return factory_.finish(std::string(name), std::move(layers_));
  }

 private:
  [[nodiscard]] static SampleShape last(const Layers& layers) {
    return layers.back()->output_shape();
  }

  /// A convolution and its norm, with a ReLU after it or not.
  void convolve(Layers& to, const char* name, SampleShape input, const ConvShape& shape,
                bool relu) {
    to.push_back(factory_.conv2d(name, input, shape, Activation::none, ReluMask::here));
    const Activation activation = relu ? Activation::relu : Activation::none;
    to.push_back(factory_.norm(fmt::format("{}_norm", name), last(to),
                               norm_setup(options_, activation, ReluMask::here)));
  }

  const ResNetPlan& plan_;
  const ModelOptions& options_;
  LayerFactory& factory_;
  SampleShape shape_;
  Layers layers_;
};

}  // namespace

ResNetPlan resnet_plan(std::string_view name) {
  return name == "resnet50" ? ResNetPlan{true, true, 64, {3, 4, 6, 3}}
                            : ResNetPlan{false, false, 16, {3, 3, 3}};
}

std::unique_ptr<Model> build_resnet(std::string_view name, const ResNetPlan& plan,
                                    SampleShape input, int classes, const ModelOptions& options,
                                    LayerFactory& factory) {
  ResNetBuilder builder(plan, input, options, factory);
  builder.stem();
  std::int64_t width = plan.width;
  for (std::size_t stage = 0; stage < plan.blocks.size(); ++stage) {
    for (int b = 0; b < plan.blocks[stage]; ++b) {
      const std::int64_t stride = stage > 0 && b == 0 ? 2 : 1;
      builder.block(fmt::format("layer{}.{}", stage + 1, b), width, stride);
    }
    width *= 2;
  }
  return builder.finish(name, classes);
}

std::unique_ptr<Model> make_resnet(std::string_view name, const ResNetPlan& plan, SampleShape input,
                                   int classes, const ModelOptions& options) {
  CpuFactory factory(options);
  return build_resnet(name, plan, input, classes, options, factory);
}

}  // namespace paceline
