// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_sequential.h"

#include <algorithm>

#include "common/core/kernels_stored.h"

namespace paceline {

GpuSequential::GpuSequential(std::string name, std::vector<std::unique_ptr<Layer>> layers,
                             std::shared_ptr<GpuContext> context, const ModelOptions& options)
    : LayeredModel(std::move(name), std::move(layers), options),
      context_(std::move(context)),
      upload_(context_),
      results_(context_),
      evaluation_(context_),
      graphs_(context_),
      cuts_(2 * layer_count()),
      inputs_(layer_count()),
      device_buffers_(context_->gpu(), buffer_elements() * sizeof(float), "running statistics"),
      buffers_(buffer_elements()) {
  initialise_buffers(buffers_);
}

GpuSequential::~GpuSequential() {
  context_->gpu().stream().drain();
}

void GpuSequential::begin_step(std::int64_t step) {
  step_ = step;
  LayeredModel::begin_step(step);
}

std::span<float> GpuSequential::buffers() {
  if (!buffers_.empty() && !buffers_lent_) {
    context_->gpu().download({device_buffers_.as<float>(), buffers_.size()}, buffers_);
    buffers_lent_ = true;
  }
  return buffers_;
}

/// The copy stays as it is until buffers() waits for the stream.
void GpuSequential::upload_buffers() {
  if (!buffers_.empty() && buffers_lent_) {
    context_->gpu().upload(buffers_, {device_buffers_.as<float>(), buffers_.size()});
  }
  buffers_lent_ = false;
}

void GpuSequential::reserve(std::int64_t samples) {
  if (samples <= capacity_) {
    return;
  }
  const auto n = static_cast<std::size_t>(samples);
  const std::size_t bytes = n * context_->element_bytes();
  const std::size_t places = n * static_cast<std::size_t>(positions());
  capacity_ = 0;
  context_->grow(activations_, output_elements() * bytes, "activations");
  context_->grow(gradients_, 2 * widest() * bytes, "gradients of activations");
  context_->grow(losses_, places * (sizeof(float) + sizeof(std::uint8_t)), "losses");
  capacity_ = samples;
}

float* GpuSequential::state(std::size_t l) const noexcept {
  return device_buffers_.as<float>() + state_of(l).begin;
}

float* GpuSequential::output(std::size_t l) const noexcept {
  return reinterpret_cast<float*>(activations_.as<std::byte>() +
                                  output_begin(l) * static_cast<std::size_t>(capacity_) *
                                      context_->element_bytes());
}

float* GpuSequential::gradient(int half) const noexcept {
  const std::size_t bytes =
      widest() * static_cast<std::size_t>(capacity_) * context_->element_bytes();
  return reinterpret_cast<float*>(gradients_.as<std::byte>() + (half == 0 ? 0 : bytes));
}

void GpuSequential::forward(const Batch& batch, const float* inputs, const float* weights,
                            bool training, LayerHooks* hooks) {
  const float* input = inputs;
  for (std::size_t l = 0; l < layer_count(); ++l) {
    if (training && leaves_out(l, batch)) {
      continue;
    }
    inputs_[l] = input;
    if (hooks != nullptr) {
      cut_if(cuts_[l]);
      hooks->before_forward(static_cast<int>(l));
    }
    if (batch.samples > 0 || layer(l).collective()) {
      graphs_.queue([&] {
        layer(l).forward(
            {batch.samples, input, output(l), weights + tensors_of(l).begin, state(l), training});
      });
    }
    input = output(l);
    if (hooks != nullptr) {
      hooks->after_forward(static_cast<int>(l));
    }
  }
}

void GpuSequential::loss(const Batch& batch, const std::int32_t* labels, bool with_gradient,
                         ResultQueue& results) {
  const std::int64_t places = batch.samples * positions();
  auto* const losses = losses_.as<float>();
  auto* const correct = losses_.as<std::uint8_t>() + static_cast<std::size_t>(capacity_) *
                                                         static_cast<std::size_t>(positions()) *
                                                         sizeof(float);
  const float scale = batch.loss_scale / static_cast<float>(positions());
  graphs_.queue([&] {
    context_->with_format([&]<typename T>(T) {
      const kernels::BasicSoftmaxCrossEntropy<T> row{
          as_stored<T>(output(layer_count() - 1)),
          labels,
          with_gradient ? as_stored<T>(gradient(0)) : nullptr,
          losses,
          correct,
          classes(),
          scale};
      context_->gpu().rows(places, row, "softmax");
    });
  });
  graphs_.cut();
  results.put(losses, correct, places, 1.0 / static_cast<double>(positions()),
              with_gradient ? step_ : ResultQueue::kNoStep);
}

void GpuSequential::backward(const Batch& batch, const float* weights, std::span<float> gradients,
                             LayerHooks* hooks) {
  int half = 0;
  for (std::size_t l = layer_count(); l-- > 0;) {
    if (leaves_out(l, batch)) {
      continue;
    }
    const Range& range = tensors_of(l);
    if (batch.samples > 0 || layer(l).collective()) {
      graphs_.queue([&] {
        layer(l).backward({batch.samples, inputs_[l], output(l), gradient(half),
                           l > 0 ? gradient(1 - half) : nullptr, weights + range.begin,
                           gradients.data() + range.begin});
      });
      half = 1 - half;
    } else {
      context_->gpu().clear(gradients.subspan(range.begin, range.size()));
    }
    if (hooks != nullptr) {
      cut_if(cuts_[layer_count() + l]);
      hooks->after_backward(static_cast<int>(l));
    }
  }
}

BatchResult GpuSequential::train_batch(const Batch& batch, std::span<const float> weights,
                                       std::span<float> gradients, LayerHooks* hooks) {
  check(batch, weights.size(), gradients.size());
  results_.check_room();
  reserve(batch.samples);
  upload_buffers();
  const BatchUpload::OnDevice there = upload_.put(batch);
  StepGraphs::Batch work =
      graphs_.begin(key_of(batch, there, weights.data(), gradients.data(), hooks));
  forward(batch, there.inputs, weights.data(), true, hooks);
  loss(batch, there.labels, true, results_);
  backward(batch, weights.data(), gradients, hooks);
  work.finish();
  upload_.release();
  return {};
}

std::optional<StepKey> GpuSequential::key_of(const Batch& batch, const BatchUpload::OnDevice& there,
                                             const float* weights, const float* gradients,
                                             const LayerHooks* hooks) {
  if (!context_->gpu().graphs() || batch.samples == 0 || collective()) {
    return std::nullopt;
  }
  for (std::size_t l = 0; l < layer_count(); ++l) {
    if (leaves_out(l, batch)) {
      return std::nullopt;
    }
    const auto layer = static_cast<int>(l);
    cuts_[l] = hooks != nullptr && hooks->queues_before_forward(layer);
    cuts_[layer_count() + l] = hooks != nullptr && hooks->queues_after_backward(layer);
  }
  return StepKey{
      batch.samples, batch.loss_scale, {there.inputs, there.labels, weights, gradients}, cuts_};
}

void GpuSequential::cut_if(bool cut) {
  if (cut) {
    graphs_.cut();
  }
}

BatchResult GpuSequential::evaluate_batch(const Batch& batch, std::span<const float> weights) {
  check(batch, weights.size());
  upload_buffers();
  BatchResult total;
  const auto take = [&] {
    const BatchResult part = evaluation_.take();
    total.loss_sum += part.loss_sum;
    total.correct += part.correct;
  };
  for (std::int64_t done = 0; done < batch.samples;) {
    const Batch part = evaluation_part(batch, done);
    done += part.samples;
    reserve(part.samples);
    const BatchUpload::OnDevice there = upload_.put(part);
    forward(part, there.inputs, weights.data(), false, nullptr);
    loss(part, there.labels, false, evaluation_);
    upload_.release();
    if (evaluation_.open() == static_cast<std::size_t>(kOpenResults)) {
      take();
    }
  }
  while (evaluation_.open() > 0) {
    take();
  }
  return total;
}

std::size_t GpuSequential::activation_bytes() const noexcept {
  return activations_.size() + gradients_.size() + losses_.size() + upload_.device_bytes() +
         results_.device_bytes() + evaluation_.device_bytes() + held_by_layers() +
         context_->bytes();
}

ActivationPlan GpuSequential::plan_activations(const PlannedBatch& batch) const {
  ActivationPlan plan = LayeredModel::plan_activations(batch);
  const auto n = static_cast<std::size_t>(batch.samples);
  plan.copies = 2 * upload_.planned_bytes(n * static_cast<std::size_t>(input_shape().elements()),
                                          n * static_cast<std::size_t>(positions())) +
                results_.device_bytes() + evaluation_.device_bytes();
  return plan;
}

}  // namespace paceline
