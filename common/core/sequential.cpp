// SPDX-License-Identifier: Apache-2.0
#include "common/core/sequential.h"

#include <omp.h>

#include <algorithm>

#include "common/core/kernels.h"

namespace paceline {

Sequential::Sequential(std::string name, std::vector<std::unique_ptr<Layer>> layers,
                       std::shared_ptr<SharedScratch> scratch, const ModelOptions& options)
    : LayeredModel(std::move(name), std::move(layers), options),
      scratch_(std::move(scratch)),
      inputs_(layer_count()),
      buffers_(buffer_elements()) {
  initialise_buffers(buffers_);
}

std::span<float> Sequential::buffers_of(std::size_t layer) noexcept {
  return std::span(buffers_).subspan(state_of(layer).begin, state_of(layer).size());
}

void Sequential::reserve(std::int64_t samples) {
  if (samples <= capacity_) {
    return;
  }
  const auto n = static_cast<std::size_t>(samples);
  activations_ = Buffer();
  gradients_ = Buffer();
  capacity_ = 0;
  activations_ = Buffer(n * output_elements() * sizeof(float));
  gradients_ = Buffer(2 * n * widest() * sizeof(float));
  losses_.resize(n * static_cast<std::size_t>(positions()));
  correct_.resize(losses_.size());
  capacity_ = samples;
}

float* Sequential::output(std::size_t layer) const noexcept {
  return activations_.as<float>().data() +
         output_begin(layer) * static_cast<std::size_t>(capacity_);
}

const float* Sequential::rounded_inputs(const Batch& batch) {
  if (options().precision == Precision::fp32) {
    return batch.inputs.data();
  }
  rounded_inputs_.assign(batch.inputs.begin(), batch.inputs.end());
  round_values(options().precision, rounded_inputs_);
  return rounded_inputs_.data();
}

/// Where forward finds a layer's weights, and backward after it.
const float* Sequential::operand_weights(std::size_t layer, const float* weights) const {
  const Layer& of = this->layer(layer);
  const bool copied = options().precision != Precision::fp32 && of.rounding() == Rounding::all &&
                      !of.rounds_weights();
  return (copied ? rounded_weights_.as<float>().data() : weights) + tensors_of(layer).begin;
}

const float* Sequential::rounded_weights(std::size_t layer, const float* weights) {
  if (options().precision != Precision::fp32 && rounded_weights_.size() == 0) {
    rounded_weights_ = Buffer(parameter_elements() * sizeof(float));
  }
  const float* operands = operand_weights(layer, weights);
  const Range& range = tensors_of(layer);
  if (operands != weights + range.begin) {
    const std::span copy = rounded_weights_.as<float>().subspan(range.begin, range.size());
    std::copy_n(weights + range.begin, range.size(), copy.begin());
    round_values(options().precision, copy);
  }
  return operands;
}

void Sequential::round_activation(std::size_t layer, float* values, std::int64_t elements) const {
  if (this->layer(layer).rounding() != Rounding::nothing) {
    round_values(options().precision, {values, static_cast<std::size_t>(elements)});
  }
}

void Sequential::forward(const Batch& batch, const float* weights, bool training,
                         LayerHooks* hooks) {
  const float* input = rounded_inputs(batch);
  for (std::size_t l = 0; l < layer_count(); ++l) {
    if (training && leaves_out(l, batch)) {
      continue;
    }
    inputs_[l] = input;
    if (hooks != nullptr) {
      hooks->before_forward(static_cast<int>(l));
    }
    if (batch.samples > 0 || layer(l).collective()) {
      layer(l).forward({batch.samples, input, output(l), rounded_weights(l, weights),
                        buffers_of(l).data(), training});
      round_activation(l, output(l), batch.samples * layer(l).output_shape().elements());
    }
    input = output(l);
    if (hooks != nullptr) {
      hooks->after_forward(static_cast<int>(l));
    }
  }
}

void Sequential::finish_logit_gradient(const Batch& batch) {
  const std::int64_t n = batch.samples * positions() * classes();
  const float factor = batch.loss_scale / static_cast<float>(positions());
  float* gradient = gradients_.as<float>().data();
  if (factor != 1.0F) {
    kernels::for_each(n, kernels::Multiply{gradient, factor});
  }
  round_values(options().precision, {gradient, static_cast<std::size_t>(n)});
}

BatchResult Sequential::loss(const Batch& batch, bool with_gradient) {
  const float* logits = output(layer_count() - 1);
  const kernels::SoftmaxCrossEntropy row{
      logits,         batch.labels.data(), with_gradient ? gradients_.as<float>().data() : nullptr,
      losses_.data(), correct_.data(),     classes()};
  kernels::for_rows(batch.samples * positions(), row);
  if (with_gradient) {
    finish_logit_gradient(batch);
  }
  BatchResult result;
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    result.loss_sum += static_cast<double>(losses_[i]);
    result.correct += correct_[i];
  }
  result.loss_sum /= static_cast<double>(positions());
  result.correct /= static_cast<double>(positions());
  return result;
}

void Sequential::backward(const Batch& batch, const float* weights, std::span<float> gradients,
                          LayerHooks* hooks) {
  float* d_output = gradients_.as<float>().data();
  float* d_input = d_output + widest() * static_cast<std::size_t>(capacity_);
  for (std::size_t l = layer_count(); l-- > 0;) {
    if (leaves_out(l, batch)) {
      continue;
    }
    const Range& range = tensors_of(l);
    if (batch.samples > 0 || layer(l).collective()) {
      layer(l).backward({batch.samples, inputs_[l], output(l), d_output, l > 0 ? d_input : nullptr,
                         operand_weights(l, weights), gradients.data() + range.begin});
      if (l > 0) {
        round_activation(l, d_input, batch.samples * layer(l).input_shape().elements());
      }
      if (layer(l).rounding() == Rounding::all) {
        round_values(options().precision, gradients.subspan(range.begin, range.size()));
      }
      std::swap(d_output, d_input);
    } else {
      std::ranges::fill(gradients.subspan(range.begin, range.size()), 0.0F);
    }
    if (hooks != nullptr) {
      hooks->after_backward(static_cast<int>(l));
    }
  }
}

BatchResult Sequential::train_batch(const Batch& batch, std::span<const float> weights,
                                    std::span<float> gradients, LayerHooks* hooks) {
  check(batch, weights.size(), gradients.size());
  omp_set_num_threads(options().threads);  // a setting of the calling thread
  reserve(batch.samples);
  forward(batch, weights.data(), true, hooks);
  const BatchResult result = loss(batch, true);
  backward(batch, weights.data(), gradients, hooks);
  return result;
}

BatchResult Sequential::evaluate_batch(const Batch& batch, std::span<const float> weights) {
  check(batch, weights.size());
  omp_set_num_threads(options().threads);
  BatchResult total;
  for (std::int64_t done = 0; done < batch.samples;) {
    const Batch part = evaluation_part(batch, done);
    done += part.samples;
    reserve(part.samples);
    forward(part, weights.data(), false, nullptr);
    const BatchResult result = loss(part, false);
    total.loss_sum += result.loss_sum;
    total.correct += result.correct;
  }
  return total;
}

std::size_t Sequential::activation_bytes() const noexcept {
  std::size_t bytes = activations_.size() + gradients_.size() + losses_.capacity() * sizeof(float) +
                      correct_.capacity() + rounded_weights_.size() +
                      rounded_inputs_.capacity() * sizeof(float);
  return bytes + held_by_layers() + (scratch_ ? scratch_->bytes() : 0);
}

std::vector<std::string> Sequential::implementations() const {
  return implementations_of_layers();
}

}  // namespace paceline
