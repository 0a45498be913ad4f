// SPDX-License-Identifier: Apache-2.0
// What models that are a chain of layers share, whatever device computes them: where tensors and
// outputs lie, first values, which layers a step leaves out.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/core/layer.h"
#include "common/core/model.h"

namespace paceline {

class LayeredModel : public Model {
 public:
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
  [[nodiscard]] bool collective() const noexcept override;
  void begin_step(std::int64_t step) override;
  void initialise(std::span<float> weights, std::uint64_t seed) const override;
  [[nodiscard]] ActivationPlan plan_activations(const PlannedBatch& batch) const override;

 protected:
  /// The last layer's output are the logits, [height·width positions, channels classes].
  LayeredModel(std::string name, std::vector<std::unique_ptr<Layer>> layers,
               const ModelOptions& options);

  /// Throws Error for a batch or weights that are not of the model's sizes.
  void check(const Batch& batch, std::size_t weights) const;
  /// The same for those of a training batch.
  void check(const Batch& batch, std::size_t weights, std::size_t gradients) const;
  /// The part that begins with sample `first` of a batch to be evaluated; the first is the largest.
  [[nodiscard]] Batch evaluation_part(const Batch& batch, std::int64_t first) const;

  [[nodiscard]] Layer& layer(std::size_t l) const noexcept { return *layers_[l]; }
  [[nodiscard]] std::size_t layer_count() const noexcept { return layers_.size(); }
  [[nodiscard]] const ModelOptions& options() const noexcept { return options_; }
  /// Whether this batch of this step does without the layer.
  [[nodiscard]] bool leaves_out(std::size_t l, const Batch& batch) const noexcept {
    return batch.samples > 0 && left_out_[l];
  }
  /// A layer's tensors in the arenas.
  [[nodiscard]] const Range& tensors_of(std::size_t l) const noexcept { return layer_ranges_[l]; }
  /// Its state among that of all layers, buffer_elements() floats.
  [[nodiscard]] const Range& state_of(std::size_t l) const noexcept { return buffer_ranges_[l]; }
  [[nodiscard]] std::size_t buffer_elements() const noexcept {
    return buffer_ranges_.empty() ? 0 : buffer_ranges_.back().end;
  }
  void initialise_buffers(std::span<float> buffers) const;

  /// Elements per sample before layer l's output, of all outputs, and of the largest activation
  /// that has a gradient; each output begins a cache line of floats.
  [[nodiscard]] std::size_t output_begin(std::size_t l) const noexcept { return output_begin_[l]; }
  [[nodiscard]] std::size_t output_elements() const noexcept { return output_elements_; }
  [[nodiscard]] std::size_t widest() const noexcept { return widest_; }
  /// Bytes that the layers hold themselves.
  [[nodiscard]] std::size_t held_by_layers() const noexcept;
  [[nodiscard]] std::vector<std::string> implementations_of_layers() const;

 private:
  /// Drawn within 1/√fan_in where there is no constant.
  struct FirstValue {
    double fan_in;
    std::optional<float> constant;
  };

  std::string name_;
  std::vector<std::unique_ptr<Layer>> layers_;
  ModelOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<FirstValue> first_values_;  // by parameter
  std::vector<Range> layer_ranges_;
  std::vector<Range> buffer_ranges_;
  std::vector<std::size_t> output_begin_;
  std::size_t output_elements_ = 0;
  std::size_t widest_ = 0;
  std::vector<bool> left_out_;
};

}  // namespace paceline
