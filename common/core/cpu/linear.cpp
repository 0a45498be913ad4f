// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/dnnl_layer.h"

namespace paceline {

namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Forward = dnnl::inner_product_forward;
using BackwardWeights = dnnl::inner_product_backward_weights;
using BackwardData = dnnl::inner_product_backward_data;
constexpr auto kF32 = dnnl::memory::data_type::f32;

/// The arena's [out, in] seen by oneDNN: with the input's channels, height and width apart where it
/// has any, so that the reorder also turns PyTorch's channels-first columns to NHWC.
Desc arena_weight(const SampleShape& in, std::int64_t outputs) {
  return in.height == 1 && in.width == 1
             ? Desc({outputs, in.channels}, kF32, Tag::ab)
             : Desc({outputs, in.channels, in.height, in.width}, kF32, Tag::abcd);
}

class Linear final : public DnnlLayer {
 public:
  Linear(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
         std::int64_t outputs, Activation activation)
      : DnnlLayer(std::move(context), std::move(name), input, {1, 1, outputs},
                  {activation == Activation::relu,
                   ReluMask::here,
                   {outputs, input.elements()},
                   input.elements(),
                   arena_weight(input, outputs)}) {}

  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(input_shape().elements() * output_shape().channels);
  }

 private:
  [[nodiscard]] Forward::primitive_desc forward_desc(std::int64_t samples) const {
    return {{dnnl::prop_kind::forward_training, input_desc(samples), any_weight(), bias_desc(),
             output_desc(samples)},
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
        {input_desc(samples), any_weight(), bias_desc(), output_desc(samples)},
        DnnlContext::attributes(), context().engine(), hint);
    set_backward_weights<BackwardWeights>(context(), weights, setup().weight, p.backward_weights,
                                          p.weight_gradient);
    if (with_input_gradient) {
      const BackwardData::primitive_desc data(
          {input_desc(samples), any_weight(), output_desc(samples)}, DnnlContext::attributes(),
          context().engine(), hint);
      set_backward_data<BackwardData>(context(), data, setup().weight, p.backward_data,
                                      p.backward_weight);
    }
  }
};

}  // namespace

std::unique_ptr<Layer> make_linear(std::shared_ptr<DnnlContext> context, std::string name,
                                   SampleShape input, std::int64_t outputs, Activation activation) {
  return std::make_unique<Linear>(std::move(context), std::move(name), input, outputs, activation);
}

}  // namespace paceline
