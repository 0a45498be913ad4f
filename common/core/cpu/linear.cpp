// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/dnnl_layer.h"

namespace paceline {

namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;
constexpr auto kF32 = dnnl::memory::data_type::f32;

/// All three products read and write the arena's layout directly: reordering weights for the inner
/// product primitive cost as much as a quarter of the products themselves.
class Linear final : public DnnlLayer {
 public:
  Linear(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
         std::int64_t outputs, Activation activation)
      : DnnlLayer(std::move(context), std::move(name), input, {1, 1, outputs},
                  {activation == Activation::relu,
                   ReluMask::here,
                   {outputs, input.elements()},
                   input.elements(),
                   Desc({outputs, input.elements()}, kF32, Tag::ab)}) {}

  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(inputs() * outputs());
  }

 private:
  [[nodiscard]] std::int64_t inputs() const noexcept { return input_shape().elements(); }
  [[nodiscard]] std::int64_t outputs() const noexcept { return output_shape().channels; }

  [[nodiscard]] Desc input_desc(std::int64_t samples, Type type) const {
    return {{samples, inputs()}, type, Tag::ab};
  }

  /// fp32 weights are taken from the arena itself.
  [[nodiscard]] std::size_t staged_weight_bytes() const override {
    return rounds_weights() ? weight_elements() * sizeof(std::uint16_t) : 0;
  }

  /// y = x·Wᵀ + b
  void make_forward(std::int64_t samples, Primitives& p) override {
    const Type type = context().operand_type();
    const dnnl::memory::dims transposed{inputs(), outputs()};
    const Desc x = input_desc(samples, type);
    const Desc weight(transposed, type, Tag::ba);
    const Desc bias({1, outputs()}, kF32, Tag::ab);
    const Desc y({samples, outputs()}, kF32, Tag::ab);
    const dnnl::matmul::primitive_desc desc(
        {x, weight, bias, y}, DnnlContext::attributes(setup().relu), context().engine());
    p.forward = DnnlOp::make<dnnl::matmul>(
        context(), desc, "forward",
        {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, y}, {DNNL_ARG_BIAS, bias}});
    p.forward_weight = DnnlReorder(context(), Desc(transposed, kF32, Tag::ba), weight);
    if (p.forward_weight.needed()) {
      context().reserve(0, weight.get_size());
    }
    make_operand(p.input, 0, input_desc(samples, kF32), x);
  }

  /// dW = dyᵀ·x, dx = dy·W
  void make_backward(std::int64_t samples, bool with_input_gradient, Primitives& p) override {
    const Type type = context().operand_type();
    const dnnl::memory::dims output{samples, outputs()};
    const Desc x = input_desc(samples, type);
    const Desc d_weight({outputs(), inputs()}, kF32, Tag::ab);
    const Desc dy(output, type, Tag::ab);
    const Desc dy_transposed({outputs(), samples}, type, Tag::ba);
    const dnnl::matmul::primitive_desc weights({dy_transposed, x, d_weight},
                                               DnnlContext::attributes(), context().engine());
    p.backward_weights = DnnlOp::make<dnnl::matmul>(
        context(), weights, "backward_weights",
        {{DNNL_ARG_WEIGHTS, x}, {DNNL_ARG_DST, d_weight}, {DNNL_ARG_SRC, dy_transposed}});
    make_operand(p.output_gradient, 1, Desc(output, kF32, Tag::ab), dy);
    if (with_input_gradient) {
      const Desc weight({outputs(), inputs()}, type, Tag::ab);
      const Desc dx = input_desc(samples, kF32);
      const dnnl::matmul::primitive_desc data({dy, weight, dx}, DnnlContext::attributes(),
                                              context().engine());
      p.backward_data = DnnlOp::make<dnnl::matmul>(
          context(), data, "backward_data",
          {{DNNL_ARG_DST, dx}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_SRC, dy}});
      p.backward_weight = DnnlReorder(context(), setup().weight, weight);
    }
  }
};

}  // namespace

std::unique_ptr<Layer> make_linear(std::shared_ptr<DnnlContext> context, std::string name,
                                   SampleShape input, std::int64_t outputs, Activation activation) {
  check_flat(name, input);
  return std::make_unique<Linear>(std::move(context), std::move(name), input, outputs, activation);
}

}  // namespace paceline
