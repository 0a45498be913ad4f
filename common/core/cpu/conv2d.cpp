// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/dnnl_layer.h"
#include "common/core/cpu/winograd.h"

namespace paceline {

namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Forward = dnnl::convolution_forward;
using BackwardWeights = dnnl::convolution_backward_weights;
using BackwardData = dnnl::convolution_backward_data;
using Type = dnnl::memory::data_type;
constexpr auto kF32 = dnnl::memory::data_type::f32;
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

class Conv2d : public DnnlLayer {
 public:
  Conv2d(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
         const ConvShape& conv, Activation activation, ReluMask mask)
      : DnnlLayer(std::move(context), std::move(name), input, convolved(input, conv),
                  {activation == Activation::relu,
                   mask,
                   {conv.outputs, input.channels, conv.kernel, conv.kernel},
                   input.channels * conv.kernel * conv.kernel,
                   Desc({conv.outputs, input.channels, conv.kernel, conv.kernel}, kF32, Tag::abcd),
                   conv.bias}),
        strides_{conv.stride, conv.stride},
        padding_{conv.padding, conv.padding} {}

  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(output_shape().elements() * setup().fan_in);
  }

 protected:
  [[nodiscard]] std::int64_t padding() const noexcept { return padding_[0]; }

 private:
  [[nodiscard]] static Desc activation(std::int64_t samples, const SampleShape& shape, Type type) {
    return {{samples, shape.channels, shape.height, shape.width}, type, Tag::acdb};
  }
  [[nodiscard]] Desc input_desc(std::int64_t samples, Type type) const {
    return activation(samples, input_shape(), type);
  }
  [[nodiscard]] Desc output_desc(std::int64_t samples, Type type) const {
    return activation(samples, output_shape(), type);
  }
  /// The layout is left to oneDNN: its own choice is up to a thousand times faster than OHWI.
  [[nodiscard]] Desc any_weight(Type type) const { return {setup().weight.dims(), type, Tag::any}; }

  [[nodiscard]] Forward::primitive_desc forward_desc(std::int64_t samples) const {
    const Desc bias = setup().bias ? Desc({output_shape().channels}, kF32, Tag::a) : Desc();
    const Type type = context().operand_type();
    return {{dnnl::prop_kind::forward_training, kAlgorithm, input_desc(samples, type),
             any_weight(type), bias, output_desc(samples, kF32), strides_, padding_, padding_},
            DnnlContext::attributes(setup().relu),
            context().engine()};
  }

  [[nodiscard]] std::size_t staged_weight_bytes() const override {
    return weight_elements() * sizeof(float);
  }

  void make_forward(std::int64_t samples, Primitives& p) override {
    const Forward::primitive_desc desc = forward_desc(samples);
    p.forward = DnnlOp::make<Forward>(context(), desc, "forward",
                                      {{DNNL_ARG_SRC, desc.src_desc()},
                                       {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                                       {DNNL_ARG_DST, desc.dst_desc()},
                                       {DNNL_ARG_BIAS, desc.bias_desc()}});
    p.forward_weight = DnnlReorder(context(), setup().weight, desc.weights_desc());
    context().reserve(0, desc.weights_desc().get_size());
    make_operand(p.input, 0, input_desc(samples, kF32), desc.src_desc());
  }

  void make_backward(std::int64_t samples, bool with_input_gradient, Primitives& p) override {
    const Type type = context().operand_type();
    const Forward::primitive_desc hint = forward_desc(samples);
    const BackwardWeights::primitive_desc weights(
        {kAlgorithm, input_desc(samples, type), any_weight(kF32), output_desc(samples, type),
         strides_, padding_, padding_},
        DnnlContext::attributes(), context().engine(), hint);
    p.backward_weights =
        DnnlOp::make<BackwardWeights>(context(), weights, "backward_weights",
                                      {{DNNL_ARG_SRC, weights.src_desc()},
                                       {DNNL_ARG_DIFF_WEIGHTS, weights.diff_weights_desc()},
                                       {DNNL_ARG_DIFF_DST, weights.diff_dst_desc()}});
    p.weight_gradient = DnnlReorder(context(), weights.diff_weights_desc(), setup().weight);
    context().reserve(0, weights.diff_weights_desc().get_size());
    make_operand(p.output_gradient, 1, output_desc(samples, kF32), weights.diff_dst_desc());
    if (!with_input_gradient) {
      return;
    }
    const BackwardData::primitive_desc data(
        {kAlgorithm, input_desc(samples, kF32), any_weight(type), output_desc(samples, type),
         strides_, padding_, padding_},
        DnnlContext::attributes(), context().engine(), hint);
    p.backward_data = DnnlOp::make<BackwardData>(context(), data, "backward_data",
                                                 {{DNNL_ARG_DIFF_SRC, data.diff_src_desc()},
                                                  {DNNL_ARG_WEIGHTS, data.weights_desc()},
                                                  {DNNL_ARG_DIFF_DST, data.diff_dst_desc()}});
    p.backward_weight = DnnlReorder(context(), setup().weight, data.weights_desc());
    context().reserve(0, data.weights_desc().get_size());
  }

  dnnl::memory::dims strides_;
  dnnl::memory::dims padding_;
};

class WinogradConv2d final : public Conv2d {
 public:
  WinogradConv2d(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
                 const ConvShape& conv, Activation activation, ReluMask mask)
      : Conv2d(std::move(context), std::move(name), input, conv, activation, mask) {}

  void forward(const ForwardPass& pass) override {
    context().reserve(0, staged_weight_bytes());
    winograd::forward(problem(pass.samples), pass.input, pass.weights,
                      setup().bias ? pass.weights + weight_elements() : nullptr, setup().relu,
                      pass.output, context().staging());
  }

  void backward(const BackwardPass& pass) override {
    context().reserve(0, staged_weight_bytes());
    if (setup().bias) {
      find_bias_gradient(pass);
    }
    const winograd::Problem whole = problem(pass.samples);
    winograd::weight_gradient(whole, pass.input, pass.d_output, pass.gradients,
                              context().staging());
    if (pass.d_input != nullptr) {
      winograd::input_gradient(whole, pass.d_output, pass.weights, pass.d_input,
                               context().staging());
    }
  }

  [[nodiscard]] std::vector<std::string> implementations() const override { return {"winograd"}; }

 private:
  [[nodiscard]] winograd::Problem problem(std::int64_t samples) const {
    return {samples, input_shape(), output_shape(), padding()};
  }
  [[nodiscard]] std::size_t staged_weight_bytes() const override {
    return winograd::scratch_elements(input_shape(), output_shape().channels) * sizeof(float);
  }
};

}  // namespace

std::unique_ptr<Layer> make_conv2d(std::shared_ptr<DnnlContext> context, std::string name,
                                   SampleShape input, const ConvShape& shape, Activation activation,
                                   ReluMask mask) {
  check_convolution(name, input, shape);
  return std::make_unique<Conv2d>(std::move(context), std::move(name), input, shape, activation,
                                  mask);
}

bool prefers_winograd(const SampleShape& input, const ConvShape& shape) {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  const bool no_avx512 = isa == dnnl::cpu_isa::sse41 || isa == dnnl::cpu_isa::avx ||
                         isa == dnnl::cpu_isa::avx2 || isa == dnnl::cpu_isa::avx2_vnni;
  return winograd::computes(input, shape) && (winograd::vector_bits() == 512 || no_avx512);
}

std::unique_ptr<Layer> make_winograd_conv2d(std::shared_ptr<DnnlContext> context, std::string name,
                                            SampleShape input, const ConvShape& shape,
                                            Activation activation, ReluMask mask) {
  check_convolution(name, input, shape);
  return std::make_unique<WinogradConv2d>(std::move(context), std::move(name), input, shape,
                                          activation, mask);
}

std::unique_ptr<Layer> make_conv2d(std::shared_ptr<DnnlContext> context, std::string name,
                                   SampleShape input, std::int64_t outputs, Activation activation,
                                   ReluMask mask) {
  return make_conv2d(std::move(context), std::move(name), input, ConvShape{.outputs = outputs},
                     activation, mask);
}

}  // namespace paceline
