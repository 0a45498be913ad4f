// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "common/base/error.h"
#include "common/core/layer_chain.h"
#include "common/core/residual.h"

namespace paceline {

namespace {

class ResNetBlock final : public Layer {
 public:
  ResNetBlock(std::string name, LayerChain branch, std::optional<LayerChain> shortcut,
              std::shared_ptr<LayerStore> store)
      : Layer(std::move(name), branch.input_shape(), branch.output_shape()),
        branch_(std::move(branch)),
        shortcut_(std::move(shortcut)),
        store_(std::move(store)),
        shortcut_output_(store_->memory()),
        shortcut_d_input_(store_->memory()) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> all = branch_.parameters();
    if (shortcut_) {
      std::ranges::move(shortcut_->parameters(), std::back_inserter(all));
    }
    return all;
  }
  [[nodiscard]] double flops() const override {
    return branch_.flops() + (shortcut_ ? shortcut_->flops() : 0.0) +
           static_cast<double>(output_shape().elements());
  }
  [[nodiscard]] std::size_t buffer_elements() const noexcept override {
    return branch_.buffer_elements() + (shortcut_ ? shortcut_->buffer_elements() : 0);
  }
  void initialise_buffers(std::span<float> buffers) const override {
    branch_.initialise_buffers(buffers.first(branch_.buffer_elements()));
    if (shortcut_) {
      shortcut_->initialise_buffers(buffers.subspan(branch_.buffer_elements()));
    }
  }
  [[nodiscard]] bool collective() const noexcept override {
    return branch_.collective() || (shortcut_ && shortcut_->collective());
  }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::activations; }

  void forward(const ForwardPass& pass) override {
    ForwardPass main = pass;
    main.addend = pass.input;
    if (shortcut_) {
      reserve(pass.samples);
      shortcut_->forward({pass.samples, pass.input, shortcut_output_->data(),
                          pass.weights + branch_.parameter_elements(),
                          pass.buffers + branch_.buffer_elements(), pass.training});
      main.addend = shortcut_output_->data();
    }
    branch_.forward(main);
  }

  void backward(const BackwardPass& pass) override {
    branch_.backward(pass);  // leaves the masked gradient in d_output, the shortcut's
    const float* d_shortcut = pass.d_output;
    if (shortcut_) {
      float* const d_input = pass.d_input != nullptr ? shortcut_d_input_->data() : nullptr;
      shortcut_->backward({pass.samples, pass.input, shortcut_output_->data(), pass.d_output,
                           d_input, pass.weights + branch_.parameter_elements(),
                           pass.gradients + branch_.parameter_elements()});
      d_shortcut = d_input;
    }
    if (pass.d_input != nullptr) {
      store_->add(pass.d_input, d_shortcut, pass.d_input, 1.0F,
                  pass.samples * input_shape().elements());
    }
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return branch_.held_bytes() + (shortcut_ ? shortcut_->held_bytes() : 0) +
           shortcut_output_->size() + shortcut_d_input_->size();
  }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    std::size_t bytes = branch_.planned_bytes(batch);
    if (shortcut_) {
      bytes += shortcut_->planned_bytes(batch) + batch.activations(output_shape().elements()) +
               batch.activations(input_shape().elements());
    }
    return bytes;
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    ScratchAreas areas = branch_.planned_scratch(batch);
    if (shortcut_) {
      grow_areas(areas, shortcut_->planned_scratch(batch));
    }
    return areas;
  }
  [[nodiscard]] std::vector<std::string> implementations() const override {
    std::vector<std::string> all = branch_.implementations();
    if (shortcut_) {
      std::ranges::move(shortcut_->implementations(), std::back_inserter(all));
    }
    return all;
  }

 private:
  void reserve(std::int64_t samples) {
    const auto bytes = [&](const SampleShape& shape) {
      return static_cast<std::size_t>(samples * shape.elements()) * store_->element_bytes();
    };
    shortcut_output_->grow(bytes(output_shape()));
    shortcut_d_input_->grow(bytes(input_shape()));
  }

  LayerChain branch_;
  std::optional<LayerChain> shortcut_;
  std::shared_ptr<LayerStore> store_;
  std::unique_ptr<StoredMemory> shortcut_output_;
  std::unique_ptr<StoredMemory> shortcut_d_input_;
};

}  // namespace

std::unique_ptr<Layer> make_resnet_block(std::string name,
                                         std::vector<std::unique_ptr<Layer>> branch,
                                         std::vector<std::unique_ptr<Layer>> shortcut,
                                         std::shared_ptr<LayerStore> store) {
  LayerChain main(std::move(branch), store);
  std::optional<LayerChain> projection;
  if (!shortcut.empty()) {
    projection.emplace(std::move(shortcut), store);
  }
  const SampleShape& beside = projection ? projection->output_shape() : main.input_shape();
  if (beside != main.output_shape() ||
      (projection && projection->input_shape() != main.input_shape())) {
    throw Error(fmt::format("layer {}: the shortcut's shape is not the branch's", name));
  }
  return std::make_unique<ResNetBlock>(std::move(name), std::move(main), std::move(projection),
                                       std::move(store));
}

}  // namespace paceline
