// SPDX-License-Identifier: Apache-2.0
// Layers in a row as a part of another layer: it owns the activations between them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/core/layer.h"
#include "common/core/layer_store.h"

namespace paceline {

/// Takes and gives what a Layer does, its tensors those of its layers in forward order. Rounds as
/// the store says around each of its layers, as Sequential does, so weights come in fp32. Used by
/// one thread.
class LayerChain {
 public:
  /// At least one layer; each takes the shape that the one before gives.
  LayerChain(std::vector<std::unique_ptr<Layer>> layers, std::shared_ptr<LayerStore> store);

  [[nodiscard]] const SampleShape& input_shape() const noexcept {
    return layers_.front()->input_shape();
  }
  [[nodiscard]] const SampleShape& output_shape() const noexcept {
    return layers_.back()->output_shape();
  }
  /// Named "LAYER.TENSOR".
  [[nodiscard]] std::vector<ParameterSpec> parameters() const;
  [[nodiscard]] std::size_t parameter_elements() const noexcept { return parameter_elements_; }
  [[nodiscard]] double flops() const;
  [[nodiscard]] std::size_t buffer_elements() const noexcept { return buffer_elements_; }
  void initialise_buffers(std::span<float> buffers) const;
  [[nodiscard]] bool collective() const noexcept;

  /// `pass.addend` is the last layer's. With 0 samples only collective layers are called.
  void forward(const ForwardPass& pass);
  /// The last layer alone may overwrite `pass.d_output`.
  void backward(const BackwardPass& pass);

  [[nodiscard]] std::size_t held_bytes() const noexcept;
  /// As Layer's.
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const;
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const;
  /// "LAYER: IMPLEMENTATION"
  [[nodiscard]] std::vector<std::string> implementations() const;

 private:
  /// Where a layer's own lies in what the chain holds.
  struct Place {
    std::size_t parameters;  ///< elements before its first tensor
    std::size_t count;       ///< of its tensors
    std::size_t buffers;     ///< likewise of its state
    std::size_t output;      ///< elements per sample before its output
    bool round_weights;      ///< it takes rounded ones
  };

  void reserve(std::int64_t samples);
  [[nodiscard]] float* output(std::size_t layer, float* last) const noexcept;
  const float* weights(std::size_t layer, const float* all, bool refresh);
  void round(std::size_t layer, float* values, std::int64_t elements) const;

  std::vector<std::unique_ptr<Layer>> layers_;
  std::shared_ptr<LayerStore> store_;
  std::vector<Place> places_;
  std::size_t parameter_elements_ = 0;
  std::size_t buffer_elements_ = 0;
  std::size_t inner_elements_ = 0;  // of all outputs but the last, per sample
  std::size_t widest_ = 0;          // of them
  std::int64_t capacity_ = 0;       // samples
  std::unique_ptr<StoredMemory> activations_;
  std::unique_ptr<StoredMemory>
      gradients_;  // two halves: layers alternate between input and output gradient
  std::vector<float> rounded_weights_;
};

}  // namespace paceline
