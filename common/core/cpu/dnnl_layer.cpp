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
  std::vector<ParameterSpec> all{{"weight", setup_.weight_shape, setup_.fan_in}};
  if (setup_.bias) {
    all.push_back({"bias", {output_shape().channels}, setup_.fan_in});
  }
  return all;
}

void DnnlLayer::make_operand(DnnlReorder& reorder, std::size_t index,
                             const dnnl::memory::desc& from, const dnnl::memory::desc& to) const {
  reorder = DnnlReorder(*context_, from, to);
  if (reorder.needed()) {
    context_->reserve_operand(index, to.get_size());
  }
}

const void* DnnlLayer::operand(DnnlReorder& reorder, std::size_t index, const float* values) const {
  if (!reorder.needed()) {
    return values;
  }
  reorder.run(*context_, values, context_->operand(index));
  return context_->operand(index);
}

const float* DnnlLayer::bias(const float* weights) {
  const float* values = weights + weight_elements_;
  if (!rounds_weights()) {
    return values;
  }
  rounded_bias_.assign(values, values + output_shape().channels);
  round_values(Precision::bf16, rounded_bias_);
  return rounded_bias_.data();
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
  const void* input = operand(p.input, 0, pass.input);
  if (setup_.bias) {
    p.forward.run(*context_, {input, weight, pass.output, bias(pass.weights)});
  } else {
    p.forward.run(*context_, {input, weight, pass.output});
  }
}

void DnnlLayer::find_bias_gradient(const BackwardPass& pass) const {
  const bool mask = setup_.relu && setup_.mask == ReluMask::here;
  const std::int64_t columns = output_shape().channels;
  kernels::for_column_tiles(
      columns, kernels::BiasGradient{mask ? pass.output : nullptr, pass.d_output,
                                     pass.gradients + weight_elements_,
                                     pass.samples * output_shape().elements() / columns, columns});
}

void DnnlLayer::backward(const BackwardPass& pass) {
  Primitives& p = primitives_[pass.samples];
  if (!p.backward_weights) {
    make_backward(pass.samples, pass.d_input != nullptr, p);
  }
  if (setup_.bias) {
    find_bias_gradient(pass);
  }
  float* gradient = p.weight_gradient.needed() ? context_->staging() : pass.gradients;
  const void* d_output = operand(p.output_gradient, 1, pass.d_output);
  p.backward_weights.run(*context_, {operand(p.input, 0, pass.input), gradient, d_output});
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
  p.backward_data.run(*context_, {pass.d_input, weight, d_output});
}

/// Blocked layouts pad the weights a little. Memory of a GPU is not oneDNN's.
ScratchAreas DnnlLayer::planned_scratch(const PlannedBatch& batch) const {
  ScratchAreas areas{};
  if (batch.element_bytes != sizeof(float)) {
    return areas;
  }
  areas[0] = staged_weight_bytes();
  if (rounds_weights()) {
    areas[1] = batch.activations(input_shape().elements()) / 2;
    areas[2] = batch.activations(output_shape().elements()) / 2;
  }
  return areas;
}

std::vector<std::string> DnnlLayer::implementations() const {
  std::vector<std::string> all;
  for (const auto& [samples, p] : primitives_) {
    for (const std::string& one :
         {p.forward.implementation(), p.backward_weights.implementation(),
          p.backward_data.implementation(), p.forward_weight.implementation(),
          p.weight_gradient.implementation(), p.backward_weight.implementation(),
          p.input.implementation(), p.output_gradient.implementation()}) {
      if (!one.empty()) {
        all.push_back(one);
      }
    }
  }
  return all;
}

}  // namespace paceline
