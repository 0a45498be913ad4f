// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/dnnl_layer.h"

#include "common/core/kernels.h"

namespace paceline {

DnnlLayer::DnnlLayer(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
                     SampleShape output, Setup setup)
    : Layer(std::move(name), input, output),
      context_(std::move(context)),
      setup_(std::move(setup)),
      weight_elements_(setup_.weight.get_size() / sizeof(float)) {}

std::vector<ParameterSpec> DnnlLayer::parameters() const {
  return {{"weight", setup_.weight_shape, setup_.fan_in},
          {"bias", {output_shape().channels}, setup_.fan_in}};
}

void DnnlLayer::forward(const ForwardPass& pass) {
  Primitives& p = primitives_[pass.samples];
  if (!p.forward) {
    make_forward(pass.samples, p);
  }
  const float* weight = pass.weights;
  if (p.forward_weight.needed()) {
    p.forward_weight.run(*context_, pass.weights, context_->staging());
    weight = context_->staging();
  }
  p.forward.run(*context_, {pass.input, weight, pass.weights + weight_elements_, pass.output});
}

void DnnlLayer::backward(const BackwardPass& pass) {
  Primitives& p = primitives_[pass.samples];
  if (!p.backward_weights) {
    make_backward(pass.samples, pass.d_input != nullptr, p);
  }
  const bool mask = setup_.relu && setup_.mask == ReluMask::here;
  const std::int64_t columns = output_shape().channels;
  kernels::for_column_tiles(
      columns, kernels::BiasGradient{mask ? pass.output : nullptr, pass.d_output,
                                     pass.gradients + weight_elements_,
                                     pass.samples * output_shape().elements() / columns, columns});
  float* gradient = p.weight_gradient.needed() ? context_->staging() : pass.gradients;
  p.backward_weights.run(*context_, {pass.input, gradient, pass.d_output});
  if (p.weight_gradient.needed()) {
    p.weight_gradient.run(*context_, gradient, pass.gradients);
  }
  if (pass.d_input == nullptr) {
    return;
  }
  const float* weight = pass.weights;
  if (p.backward_weight.needed()) {
    p.backward_weight.run(*context_, pass.weights, context_->staging());
    weight = context_->staging();
  }
  p.backward_data.run(*context_, {pass.d_input, weight, pass.d_output});
}

std::vector<std::string> DnnlLayer::implementations() const {
  std::vector<std::string> all;
  for (const auto& [samples, p] : primitives_) {
    for (const std::string& one :
         {p.forward.implementation(), p.backward_weights.implementation(),
          p.backward_data.implementation(), p.forward_weight.implementation(),
          p.weight_gradient.implementation(), p.backward_weight.implementation()}) {
      if (!one.empty()) {
        all.push_back(one);
      }
    }
  }
  return all;
}

}  // namespace paceline
