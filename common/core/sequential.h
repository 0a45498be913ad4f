// SPDX-License-Identifier: Apache-2.0
// A Model that is a chain of layers ending in softmax cross-entropy at each position of its output.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/layered_model.h"

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
class Sequential final : public LayeredModel {
 public:
  /// The last layer's output are the logits, [height·width positions, channels classes]. `scratch`
  /// may be null.
  Sequential(std::string name, std::vector<std::unique_ptr<Layer>> layers,
             std::shared_ptr<SharedScratch> scratch, const ModelOptions& options);

  [[nodiscard]] std::span<float> buffers() noexcept override { return buffers_; }
  BatchResult train_batch(const Batch& batch, std::span<const float> weights,
                          std::span<float> gradients, LayerHooks* hooks) override;
  BatchResult evaluate_batch(const Batch& batch, std::span<const float> weights) override;
  [[nodiscard]] std::size_t activation_bytes() const noexcept override;
  [[nodiscard]] std::size_t unplanned_bytes() const noexcept override {
    return scratch_ ? scratch_->unplanned_bytes() : 0;
  }

  /// What computes the layers' primitives (diagnostics), "layer: implementation".
  [[nodiscard]] std::vector<std::string> implementations() const;

 private:
  [[nodiscard]] std::span<float> buffers_of(std::size_t layer) noexcept;
  void reserve(std::int64_t samples);
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

  std::shared_ptr<SharedScratch> scratch_;  // outlives the layers' calls
  std::int64_t capacity_ = 0;               // samples
  Buffer activations_;
  Buffer gradients_;  // two halves: layers alternate between input and output gradient
  std::vector<float> losses_;
  std::vector<std::uint8_t> correct_;
  std::vector<const float*> inputs_;  // of each layer, kept from forward to backward
  Buffer rounded_weights_;            // the whole arena, below fp32
  std::vector<float> rounded_inputs_;
  std::vector<float> buffers_;
};

}  // namespace paceline
