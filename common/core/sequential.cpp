// SPDX-License-Identifier: Apache-2.0
#include "common/core/sequential.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/core/kernels.h"
#include "common/core/random.h"

namespace paceline {

namespace {

constexpr std::size_t kLineFloats = 16;

/// Floats of an activation rounded up to whole cache lines.
std::size_t padded(std::size_t elements) {
  return (elements + kLineFloats - 1) / kLineFloats * kLineFloats;
}

std::size_t elements_of(const SampleShape& shape) {
  return static_cast<std::size_t>(shape.elements());
}

}  // namespace

Sequential::Sequential(std::string name, std::vector<std::unique_ptr<Layer>> layers,
                       std::shared_ptr<SharedScratch> scratch, const ModelOptions& options)
    : name_(std::move(name)),
      scratch_(std::move(scratch)),
      layers_(std::move(layers)),
      options_(options),
      layer_ranges_(layers_.size()),
      left_out_(layers_.size()),
      inputs_(layers_.size()) {
  std::size_t offset = 0;
  for (std::size_t l = layers_.size(); l-- > 0;) {
    const Layer& layer = *layers_[l];
    const std::size_t begin = offset;
    for (ParameterSpec& spec : layer.parameters()) {
      const std::size_t end = offset + spec.elements();
      parameters_.push_back({fmt::format("{}.{}", layer.name(), spec.name), std::move(spec.shape),
                             Range{offset, end}, static_cast<int>(l)});
      first_values_.push_back({static_cast<double>(spec.fan_in), spec.initial});
      offset = end;
    }
    layer_ranges_[l] = {begin, offset};
  }
  for (const auto& layer : layers_) {
    const std::size_t elements = padded(elements_of(layer->output_shape()));
    buffer_ranges_.push_back({buffers_.size(), buffers_.size() + layer->buffer_elements()});
    buffers_.resize(buffer_ranges_.back().end);
    output_begin_.push_back(output_elements_);
    output_elements_ += elements;
    widest_ = std::max(widest_, elements);
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l]->initialise_buffers(buffers_of(l));
  }
}

bool Sequential::collective() const noexcept {
  return std::ranges::any_of(layers_, [](const auto& layer) { return layer->collective(); });
}

void Sequential::begin_step(std::int64_t step) {
  const std::uint64_t rank_key =
      stream_key(stream_key(options_.seed, "drop_path"), static_cast<std::uint64_t>(options_.rank));
  const std::uint64_t key = stream_key(rank_key, static_cast<std::uint64_t>(step));
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    left_out_[l] = static_cast<double>(uniform01(key, l)) < layers_[l]->drop_chance();
  }
}

std::span<float> Sequential::buffers_of(std::size_t layer) noexcept {
  return std::span(buffers_).subspan(buffer_ranges_[layer].begin, buffer_ranges_[layer].size());
}

void Sequential::initialise(std::span<float> weights, std::uint64_t seed) const {
  if (weights.size() != parameter_elements()) {
    throw Error(fmt::format("model {}: {} weights to initialise, expected {}", name_,
                            weights.size(), parameter_elements()));
  }
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const std::uint64_t key = stream_key(seed, parameters_[p].name);
    const auto bound = static_cast<float>(1.0 / std::sqrt(first_values_[p].fan_in));
    const Range& range = parameters_[p].range;
    if (first_values_[p].constant) {
      std::ranges::fill(weights.subspan(range.begin, range.size()), *first_values_[p].constant);
      continue;
    }
    for (std::size_t i = 0; i < range.size(); ++i) {
      weights[range.begin + i] = bound * (2.0F * uniform01(key, i) - 1.0F);
    }
  }
}

void Sequential::reserve(std::int64_t samples) {
  if (samples <= capacity_) {
    return;
  }
  const auto n = static_cast<std::size_t>(samples);
  activations_ = Buffer();
  gradients_ = Buffer();
  capacity_ = 0;
  activations_ = Buffer(n * output_elements_ * sizeof(float));
  gradients_ = Buffer(2 * n * widest_ * sizeof(float));
  losses_.resize(n * static_cast<std::size_t>(positions()));
  correct_.resize(losses_.size());
  capacity_ = samples;
}

float* Sequential::output(std::size_t layer) const noexcept {
  return activations_.as<float>().data() +
         output_begin_[layer] * static_cast<std::size_t>(capacity_);
}

void Sequential::check(const Batch& batch, std::size_t weights) const {
  const auto n = static_cast<std::size_t>(batch.samples);
  if (batch.samples < 0 || batch.inputs.size() != n * elements_of(input_shape()) ||
      batch.labels.size() != n * static_cast<std::size_t>(positions())) {
    throw Error(fmt::format("model {}: a batch of {} samples with {} inputs and {} labels", name_,
                            batch.samples, batch.inputs.size(), batch.labels.size()));
  }
  if (weights != parameter_elements()) {
    throw Error(
        fmt::format("model {}: {} weights, expected {}", name_, weights, parameter_elements()));
  }
  for (const std::int32_t label : batch.labels) {
    if (label < 0 || label >= classes()) {
      throw Error(fmt::format("model {}: label {}, allowed 0..{}", name_, label, classes() - 1));
    }
  }
}

const float* Sequential::rounded_inputs(const Batch& batch) {
  if (options_.precision == Precision::fp32) {
    return batch.inputs.data();
  }
  rounded_inputs_.assign(batch.inputs.begin(), batch.inputs.end());
  round_values(options_.precision, rounded_inputs_);
  return rounded_inputs_.data();
}

/// Where forward finds a layer's weights, and backward after it.
const float* Sequential::operand_weights(std::size_t layer, const float* weights) const {
  const Layer& of = *layers_[layer];
  const bool copied = options_.precision != Precision::fp32 && of.rounding() == Rounding::all &&
                      !of.rounds_weights();
  return (copied ? rounded_weights_.as<float>().data() : weights) + layer_ranges_[layer].begin;
}

const float* Sequential::rounded_weights(std::size_t layer, const float* weights) {
  if (options_.precision != Precision::fp32 && rounded_weights_.size() == 0) {
    rounded_weights_ = Buffer(parameter_elements() * sizeof(float));
  }
  const float* operands = operand_weights(layer, weights);
  const Range& range = layer_ranges_[layer];
  if (operands != weights + range.begin) {
    const std::span copy = rounded_weights_.as<float>().subspan(range.begin, range.size());
    std::copy_n(weights + range.begin, range.size(), copy.begin());
    round_values(options_.precision, copy);
  }
  return operands;
}

void Sequential::round_activation(std::size_t layer, float* values, std::int64_t elements) const {
  if (layers_[layer]->rounding() != Rounding::nothing) {
    round_values(options_.precision, {values, static_cast<std::size_t>(elements)});
  }
}

void Sequential::forward(const Batch& batch, const float* weights, bool training,
                         LayerHooks* hooks) {
  const float* input = rounded_inputs(batch);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (training && batch.samples > 0 && left_out_[l]) {
      continue;
    }
    inputs_[l] = input;
    if (hooks != nullptr) {
      hooks->before_forward(static_cast<int>(l));
    }
    if (batch.samples > 0 || layers_[l]->collective()) {
      layers_[l]->forward({batch.samples, input, output(l), rounded_weights(l, weights),
                           buffers_of(l).data(), training});
      round_activation(l, output(l), batch.samples * layers_[l]->output_shape().elements());
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
  round_values(options_.precision, {gradient, static_cast<std::size_t>(n)});
}

BatchResult Sequential::loss(const Batch& batch, bool with_gradient) {
  const float* logits = output(layers_.size() - 1);
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
  float* d_input = d_output + widest_ * static_cast<std::size_t>(capacity_);
  for (std::size_t l = layers_.size(); l-- > 0;) {
    if (batch.samples > 0 && left_out_[l]) {
      continue;
    }
    const Range& range = layer_ranges_[l];
    if (batch.samples > 0 || layers_[l]->collective()) {
      layers_[l]->backward({batch.samples, inputs_[l], output(l), d_output,
                            l > 0 ? d_input : nullptr, operand_weights(l, weights),
                            gradients.data() + range.begin});
      if (l > 0) {
        round_activation(l, d_input, batch.samples * layers_[l]->input_shape().elements());
      }
      if (layers_[l]->rounding() == Rounding::all) {
        round_values(options_.precision, gradients.subspan(range.begin, range.size()));
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
  check(batch, weights.size());
  if (gradients.size() != parameter_elements()) {
    throw Error(fmt::format("model {}: {} gradients, expected {}", name_, gradients.size(),
                            parameter_elements()));
  }
  omp_set_num_threads(options_.threads);  // a setting of the calling thread
  reserve(batch.samples);
  forward(batch, weights.data(), true, hooks);
  const BatchResult result = loss(batch, true);
  backward(batch, weights.data(), gradients, hooks);
  return result;
}

BatchResult Sequential::evaluate_batch(const Batch& batch, std::span<const float> weights) {
  check(batch, weights.size());
  omp_set_num_threads(options_.threads);
  reserve(std::min(batch.samples, kEvaluationSamples));
  const std::size_t width = elements_of(input_shape());
  BatchResult total;
  for (std::int64_t done = 0; done < batch.samples; done += kEvaluationSamples) {
    const std::int64_t samples = std::min(kEvaluationSamples, batch.samples - done);
    const auto n = static_cast<std::size_t>(samples);
    const auto first = static_cast<std::size_t>(done);
    const auto labels = static_cast<std::size_t>(positions());
    const Batch part{batch.inputs.subspan(first * width, n * width),
                     batch.labels.subspan(first * labels, n * labels), samples};
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
  for (const auto& layer : layers_) {
    bytes += layer->held_bytes();
  }
  return bytes + (scratch_ ? scratch_->bytes() : 0);
}

ActivationPlan Sequential::plan_activations(const PlannedBatch& batch) const {
  const auto n = static_cast<std::size_t>(batch.samples);
  ActivationPlan plan;
  plan.outputs = n * output_elements_ * batch.element_bytes;
  plan.gradients = 2 * n * widest_ * batch.element_bytes;
  plan.layers = n * static_cast<std::size_t>(positions()) * (sizeof(float) + sizeof(std::uint8_t));
  if (options_.precision != Precision::fp32) {
    plan.copies =
        parameter_elements() * batch.element_bytes + batch.activations(input_shape().elements());
  }
  ScratchAreas areas{};
  for (const auto& layer : layers_) {
    plan.layers += layer->planned_bytes(batch);
    grow_areas(areas, layer->planned_scratch(batch));
  }
  plan.scratch = std::accumulate(areas.begin(), areas.end(), std::size_t{0});
  return plan;
}

std::vector<std::string> Sequential::implementations() const {
  return implementations_of(layers_);
}

}  // namespace paceline
