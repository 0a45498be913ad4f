// SPDX-License-Identifier: Apache-2.0
// A Model that is a chain of layers ending in softmax cross-entropy at each position of its output.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/layer.h"
#include "common/core/model.h"

namespace paceline {

/// Memory that the layers of one model share for what lives within a single forward or backward
/// call; its owner reports it.
class SharedScratch {
 public:
  SharedScratch() = default;
  virtual ~SharedScratch() = default;
  SharedScratch(const SharedScratch&) = delete;
  SharedScratch& operator=(const SharedScratch&) = delete;
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
  /// Of bytes(), what no layer's planned_scratch() knows.
  [[nodiscard]] virtual std::size_t unplanned_bytes() const noexcept { return 0; }
};

/// Activations are allocated for the largest training batch seen and reused.
///
/// Precision below fp32 acts at the layers' boundaries, whether the hardware has the format or not:
/// inputs, weights, outputs, and the gradients of outputs and weights are rounded to it as the
/// layer's Rounding says; products add in fp32, softmax and loss are fp32.
class Sequential final : public Model {
 public:
  /// The last layer's output are the logits, [height·width positions, channels classes]. `scratch`
  /// may be null.
  Sequential(std::string name, std::vector<std::unique_ptr<Layer>> layers,
             std::shared_ptr<SharedScratch> scratch, const ModelOptions& options);

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] SampleShape input_shape() const noexcept override {
    return layers_.front()->input_shape();
  }
  [[nodiscard]] int classes() const noexcept override {
    return static_cast<int>(layers_.back()->output_shape().channels);
  }
  [[nodiscard]] std::int64_t positions() const noexcept override {
    return layers_.back()->output_shape().elements() / classes();
  }
  [[nodiscard]] int layers() const noexcept override { return static_cast<int>(layers_.size()); }
  [[nodiscard]] std::string_view layer_name(int layer) const override {
    return layers_.at(static_cast<std::size_t>(layer))->name();
  }
  [[nodiscard]] double layer_flops(int layer) const override {
    return layers_.at(static_cast<std::size_t>(layer))->flops();
  }
  [[nodiscard]] const std::vector<Parameter>& parameters() const noexcept override {
    return parameters_;
  }
  [[nodiscard]] std::span<float> buffers() noexcept override { return buffers_; }
  [[nodiscard]] bool collective() const noexcept override;
  void begin_step(std::int64_t step) override;
  void initialise(std::span<float> weights, std::uint64_t seed) const override;
  BatchResult train_batch(const Batch& batch, std::span<const float> weights,
                          std::span<float> gradients, LayerHooks* hooks) override;
  BatchResult evaluate_batch(const Batch& batch, std::span<const float> weights) override;
  [[nodiscard]] std::size_t activation_bytes() const noexcept override;
  [[nodiscard]] std::size_t unplanned_bytes() const noexcept override {
    return scratch_ ? scratch_->unplanned_bytes() : 0;
  }
  [[nodiscard]] ActivationPlan plan_activations(const PlannedBatch& batch) const override;

  /// What computes the layers' primitives (diagnostics), "layer: implementation".
  [[nodiscard]] std::vector<std::string> implementations() const;

 private:
  /// Drawn within 1/√fan_in where there is no constant.
  struct FirstValue {
    double fan_in;
    std::optional<float> constant;
  };

  [[nodiscard]] std::span<float> buffers_of(std::size_t layer) noexcept;
  void reserve(std::int64_t samples);
  void check(const Batch& batch, std::size_t weights) const;
  void forward(const Batch& batch, const float* weights, bool training, LayerHooks* hooks);
  void backward(const Batch& batch, const float* weights, std::span<float> gradients,
                LayerHooks* hooks);
  const float* rounded_inputs(const Batch& batch);
  const float* rounded_weights(std::size_t layer, const float* weights);
  [[nodiscard]] const float* operand_weights(std::size_t layer, const float* weights) const;
  void round_activation(std::size_t layer, float* values, std::int64_t elements) const;
  BatchResult loss(const Batch& batch, bool with_gradient);
  void finish_logit_gradient(const Batch& batch);
  [[nodiscard]] float* output(std::size_t layer) const noexcept;

  std::string name_;
  std::shared_ptr<SharedScratch> scratch_;  // outlives the layers that use it
  std::vector<std::unique_ptr<Layer>> layers_;
  ModelOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<Range> layer_ranges_;        // of each layer's tensors in the arenas
  std::vector<std::size_t> output_begin_;  // floats per sample before layer l's output
  std::size_t output_elements_ = 0;        // of all layers, per sample
  std::size_t widest_ = 0;                 // largest activation that has a gradient, per sample
  std::int64_t capacity_ = 0;              // samples
  Buffer activations_;
  Buffer gradients_;  // two halves: layers alternate between input and output gradient
  std::vector<float> losses_;
  std::vector<std::uint8_t> correct_;
  std::vector<FirstValue> first_values_;  // by parameter
  std::vector<bool> left_out_;            // layers, in this step
  std::vector<const float*> inputs_;      // of each layer, kept from forward to backward
  Buffer rounded_weights_;                // the whole arena, below fp32
  std::vector<float> rounded_inputs_;
  std::vector<float> buffers_;
  std::vector<Range> buffer_ranges_;  // of each layer's state in buffers_
};

}  // namespace paceline
