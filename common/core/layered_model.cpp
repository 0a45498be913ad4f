// SPDX-License-Identifier: Apache-2.0
#include "common/core/layered_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/core/random.h"

namespace paceline {

namespace {

constexpr std::size_t kLineFloats = 16;

/// Floats of an activation rounded up to whole cache lines.
std::size_t whole_lines(const SampleShape& shape) {
  const auto elements = static_cast<std::size_t>(shape.elements());
  return (elements + kLineFloats - 1) / kLineFloats * kLineFloats;
}

}  // namespace

LayeredModel::LayeredModel(std::string name, std::vector<std::unique_ptr<Layer>> layers,
                           const ModelOptions& options)
    : name_(std::move(name)),
      layers_(std::move(layers)),
      options_(options),
      layer_ranges_(layers_.size()),
      left_out_(layers_.size()) {
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
    const std::size_t elements = whole_lines(layer->output_shape());
    const std::size_t state = buffer_elements();
    buffer_ranges_.push_back({state, state + layer->buffer_elements()});
    output_begin_.push_back(output_elements_);
    output_elements_ += elements;
    widest_ = std::max(widest_, elements);
  }
}

bool LayeredModel::collective() const noexcept {
  return std::ranges::any_of(layers_, [](const auto& layer) { return layer->collective(); });
}

void LayeredModel::begin_step(std::int64_t step) {
  const std::uint64_t rank_key =
      stream_key(stream_key(options_.seed, "drop_path"), static_cast<std::uint64_t>(options_.rank));
  const std::uint64_t key = stream_key(rank_key, static_cast<std::uint64_t>(step));
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    left_out_[l] = static_cast<double>(uniform01(key, l)) < layers_[l]->drop_chance();
  }
}

void LayeredModel::initialise_buffers(std::span<float> buffers) const {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l]->initialise_buffers(
        buffers.subspan(buffer_ranges_[l].begin, buffer_ranges_[l].size()));
  }
}

void LayeredModel::initialise(std::span<float> weights, std::uint64_t seed) const {
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

void LayeredModel::check(const Batch& batch, std::size_t weights) const {
  const auto n = static_cast<std::size_t>(batch.samples);
  if (batch.samples < 0 ||
      batch.inputs.size() != n * static_cast<std::size_t>(input_shape().elements()) ||
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

void LayeredModel::check(const Batch& batch, std::size_t weights, std::size_t gradients) const {
  check(batch, weights);
  if (gradients != parameter_elements()) {
    throw Error(
        fmt::format("model {}: {} gradients, expected {}", name_, gradients, parameter_elements()));
  }
}

Batch LayeredModel::evaluation_part(const Batch& batch, std::int64_t first) const {
  const std::int64_t samples = std::min(options_.evaluation_samples, batch.samples - first);
  const auto part = [&](auto values, std::int64_t of_sample) {
    return values.subspan(static_cast<std::size_t>(first * of_sample),
                          static_cast<std::size_t>(samples * of_sample));
  };
  return {part(batch.inputs, input_shape().elements()), part(batch.labels, positions()), samples};
}

std::size_t LayeredModel::held_by_layers() const noexcept {
  std::size_t bytes = 0;
  for (const auto& layer : layers_) {
    bytes += layer->held_bytes();
  }
  return bytes;
}

std::vector<std::string> LayeredModel::implementations_of_layers() const {
  return implementations_of(layers_);
}

ActivationPlan LayeredModel::plan_activations(const PlannedBatch& batch) const {
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

}  // namespace paceline
