// SPDX-License-Identifier: Apache-2.0
#include "common/core/layer_chain.h"

#include <fmt/format.h>

#include <algorithm>

namespace paceline {

LayerChain::LayerChain(std::vector<std::unique_ptr<Layer>> layers,
                       std::shared_ptr<LayerStore> store)
    : layers_(std::move(layers)),
      store_(std::move(store)),
      activations_(store_->memory()),
      gradients_(store_->memory()) {
  constexpr std::size_t kLine = 16;  // floats of a cache line
  for (const auto& layer : layers_) {
    Place place{parameter_elements_, 0, buffer_elements_, inner_elements_, false};
    for (const ParameterSpec& spec : layer->parameters()) {
      place.count += spec.elements();
    }
    place.round_weights = store_->rounds_to() != Precision::fp32 &&
                          layer->rounding() == Rounding::all && !layer->rounds_weights() &&
                          place.count > 0;
    places_.push_back(place);
    parameter_elements_ += place.count;
    buffer_elements_ += layer->buffer_elements();
    if (layer != layers_.back()) {
      const auto elements = static_cast<std::size_t>(layer->output_shape().elements());
      const std::size_t padded = (elements + kLine - 1) / kLine * kLine;
      inner_elements_ += padded;
      widest_ = std::max(widest_, padded);
    }
  }
}

std::vector<ParameterSpec> LayerChain::parameters() const {
  std::vector<ParameterSpec> all;
  for (const auto& layer : layers_) {
    for (ParameterSpec& spec : layer->parameters()) {
      spec.name = fmt::format("{}.{}", layer->name(), spec.name);
      all.push_back(std::move(spec));
    }
  }
  return all;
}

double LayerChain::flops() const {
  double sum = 0.0;
  for (const auto& layer : layers_) {
    sum += layer->flops();
  }
  return sum;
}

void LayerChain::initialise_buffers(std::span<float> buffers) const {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l]->initialise_buffers(
        buffers.subspan(places_[l].buffers, layers_[l]->buffer_elements()));
  }
}

bool LayerChain::collective() const noexcept {
  return std::ranges::any_of(layers_, [](const auto& layer) { return layer->collective(); });
}

void LayerChain::reserve(std::int64_t samples) {
  if (samples <= capacity_) {
    return;
  }
  const auto n = static_cast<std::size_t>(samples);
  capacity_ = 0;
  activations_->grow(n * inner_elements_ * store_->element_bytes());
  gradients_->grow(2 * n * widest_ * store_->element_bytes());
  capacity_ = samples;
}

float* LayerChain::output(std::size_t layer, float* last) const noexcept {
  return layer + 1 == layers_.size()
             ? last
             : store_->after(activations_->data(),
                             places_[layer].output * static_cast<std::size_t>(capacity_));
}

/// `refresh`: round anew, else what was rounded before.
const float* LayerChain::weights(std::size_t layer, const float* all, bool refresh) {
  const Place& place = places_[layer];
  if (!place.round_weights) {
    return all + place.parameters;
  }
  rounded_weights_.resize(parameter_elements_);
  const std::span copy = std::span(rounded_weights_).subspan(place.parameters, place.count);
  if (refresh) {
    std::copy_n(all + place.parameters, place.count, copy.begin());
    round_values(store_->rounds_to(), copy);
  }
  return copy.data();
}

void LayerChain::round(std::size_t layer, float* values, std::int64_t elements) const {
  if (layers_[layer]->rounding() != Rounding::nothing) {
    round_values(store_->rounds_to(), {values, static_cast<std::size_t>(elements)});
  }
}

void LayerChain::forward(const ForwardPass& pass) {
  reserve(pass.samples);
  const float* input = pass.input;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = *layers_[l];
    float* const to = output(l, pass.output);
    if (pass.samples > 0 || layer.collective()) {
      const bool last = l + 1 == layers_.size();
      layer.forward({pass.samples, input, to, weights(l, pass.weights, true),
                     pass.buffers + places_[l].buffers, pass.training,
                     last ? pass.addend : nullptr});
      round(l, to, pass.samples * layer.output_shape().elements());
    }
    input = to;
  }
}

void LayerChain::backward(const BackwardPass& pass) {
  float* d_output = pass.d_output;
  float* halves[] = {
      gradients_->data(),
      store_->after(gradients_->data(), widest_ * static_cast<std::size_t>(capacity_))};
  for (std::size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = *layers_[l];
    const std::span gradient(pass.gradients + places_[l].parameters, places_[l].count);
    float* const d_input = l > 0 ? halves[l % 2] : pass.d_input;
    if (pass.samples > 0 || layer.collective()) {
      layer.backward({pass.samples, l > 0 ? output(l - 1, nullptr) : pass.input,
                      l + 1 == layers_.size() ? pass.output : output(l, nullptr), d_output, d_input,
                      weights(l, pass.weights, false), gradient.data()});
      if (d_input != nullptr) {
        round(l, d_input, pass.samples * layer.input_shape().elements());
      }
      if (layer.rounding() == Rounding::all) {
        round_values(store_->rounds_to(), gradient);
      }
    } else {
      store_->clear(gradient);
    }
    d_output = d_input;
  }
}

std::size_t LayerChain::held_bytes() const noexcept {
  std::size_t bytes =
      activations_->size() + gradients_->size() + rounded_weights_.capacity() * sizeof(float);
  for (const auto& layer : layers_) {
    bytes += layer->held_bytes();
  }
  return bytes;
}

/// With activations of 16 bits the model's own rounded copy of the weights serves all layers.
std::size_t LayerChain::planned_bytes(const PlannedBatch& batch) const {
  const auto n = static_cast<std::size_t>(batch.samples);
  std::size_t bytes = n * (inner_elements_ + 2 * widest_) * batch.element_bytes;
  if (batch.element_bytes == sizeof(float) &&
      std::ranges::any_of(places_, [](const Place& place) { return place.round_weights; })) {
    bytes += parameter_elements_ * sizeof(float);
  }
  for (const auto& layer : layers_) {
    bytes += layer->planned_bytes(batch);
  }
  return bytes;
}

ScratchAreas LayerChain::planned_scratch(const PlannedBatch& batch) const {
  ScratchAreas areas{};
  for (const auto& layer : layers_) {
    grow_areas(areas, layer->planned_scratch(batch));
  }
  return areas;
}

std::vector<std::string> LayerChain::implementations() const {
  return implementations_of(layers_);
}

}  // namespace paceline
