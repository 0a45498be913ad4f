// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/cpu/dnnl_layer.h"

namespace paceline {

namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Forward = dnnl::convolution_forward;
using BackwardWeights = dnnl::convolution_backward_weights;
using BackwardData = dnnl::convolution_backward_data;
constexpr auto kF32 = dnnl::memory::data_type::f32;
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

constexpr std::int64_t kKernel = 3;

class Conv2d final : public DnnlLayer {
 public:
  Conv2d(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
         std::int64_t outputs, Activation activation, ReluMask mask)
      : DnnlLayer(std::move(context), std::move(name), input,
                  {input.height - kKernel + 1, input.width - kKernel + 1, outputs},
                  {activation == Activation::relu,
                   mask,
                   {outputs, input.channels, kKernel, kKernel},
                   input.channels * kKernel * kKernel,
                   Desc({outputs, input.channels, kKernel, kKernel}, kF32, Tag::abcd)}) {}

  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(output_shape().elements() * setup().fan_in);
  }

 private:
  [[nodiscard]] Forward::primitive_desc forward_desc(std::int64_t samples) const {
    return {{dnnl::prop_kind::forward_training, kAlgorithm, input_desc(samples), any_weight(),
             bias_desc(), output_desc(samples), strides_, padding_, padding_},
            DnnlContext::attributes(setup().relu),
            context().engine()};
  }

  void make_forward(std::int64_t samples, Primitives& p) override {
    set_forward<Forward>(context(), forward_desc(samples), setup().weight, p.forward,
                         p.forward_weight);
  }

  void make_backward(std::int64_t samples, bool with_input_gradient, Primitives& p) override {
    const Forward::primitive_desc hint = forward_desc(samples);
    const BackwardWeights::primitive_desc weights(
        {kAlgorithm, input_desc(samples), any_weight(), bias_desc(), output_desc(samples), strides_,
         padding_, padding_},
        DnnlContext::attributes(), context().engine(), hint);
    set_backward_weights<BackwardWeights>(context(), weights, setup().weight, p.backward_weights,
                                          p.weight_gradient);
    if (with_input_gradient) {
      const BackwardData::primitive_desc data({kAlgorithm, input_desc(samples), any_weight(),
                                               output_desc(samples), strides_, padding_, padding_},
                                              DnnlContext::attributes(), context().engine(), hint);
      set_backward_data<BackwardData>(context(), data, setup().weight, p.backward_data,
                                      p.backward_weight);
    }
  }

  dnnl::memory::dims strides_{1, 1};
  dnnl::memory::dims padding_{0, 0};
};

}  // namespace

std::unique_ptr<Layer> make_conv2d(std::shared_ptr<DnnlContext> context, std::string name,
                                   SampleShape input, std::int64_t outputs, Activation activation,
                                   ReluMask mask) {
  if (input.height < kKernel || input.width < kKernel) {
    throw ConfigError(
        fmt::format("layer {}: 3x3 convolution of a {}x{} input, at least 3x3 is needed", name,
                    input.height, input.width));
  }
  return std::make_unique<Conv2d>(std::move(context), std::move(name), input, outputs, activation,
                                  mask);
}

}  // namespace paceline
