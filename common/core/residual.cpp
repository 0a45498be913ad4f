// SPDX-License-Identifier: Apache-2.0
#include "common/core/residual.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace paceline {

namespace {

class Residual final : public Layer {
 public:
  Residual(std::unique_ptr<Layer> branch, double drop_path, std::shared_ptr<LayerStore> store)
      : Layer(std::string(branch->name()), branch->input_shape(), branch->output_shape()),
        branch_(std::move(branch)),
        drop_path_(drop_path),
        store_(std::move(store)),
        output_(store_->memory()),
        d_output_(store_->memory()) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    return branch_->parameters();
  }
  [[nodiscard]] double flops() const override {
    return branch_->flops() + static_cast<double>(output_shape().elements());
  }
  [[nodiscard]] double drop_chance() const noexcept override { return drop_path_; }
  [[nodiscard]] Rounding rounding() const noexcept override { return branch_->rounding(); }
  [[nodiscard]] bool rounds_weights() const noexcept override { return branch_->rounds_weights(); }

  void forward(const ForwardPass& pass) override {
    const std::int64_t n = pass.samples * output_shape().elements();
    output_->grow(static_cast<std::size_t>(n) * store_->element_bytes());
    d_output_->grow(static_cast<std::size_t>(n) * store_->element_bytes());
    branch_->forward(
        {pass.samples, pass.input, output_->data(), pass.weights, pass.buffers, pass.training});
    round_values(store_->rounds_to(), {output_->data(), static_cast<std::size_t>(n)});
    const float scale = pass.training ? 1.0F : static_cast<float>(1.0 - drop_path_);
    store_->add(pass.input, output_->data(), pass.output, scale, n);
  }

  void backward(const BackwardPass& pass) override {
    const std::int64_t n = pass.samples * output_shape().elements();
    store_->copy(pass.d_output, d_output_->data(), n);  // the branch may overwrite its own
    branch_->backward({pass.samples, pass.input, output_->data(), d_output_->data(), pass.d_input,
                       pass.weights, pass.gradients});
    if (pass.d_input != nullptr) {
      round_values(store_->rounds_to(), {pass.d_input, static_cast<std::size_t>(n)});
      store_->add(pass.d_input, pass.d_output, pass.d_input, 1.0F, n);
    }
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return branch_->held_bytes() + output_->size() + d_output_->size();
  }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    return branch_->planned_bytes(batch) + 2 * batch.activations(output_shape().elements());
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    return branch_->planned_scratch(batch);
  }
  [[nodiscard]] std::vector<std::string> implementations() const override {
    return branch_->implementations();
  }

 private:
  std::unique_ptr<Layer> branch_;
  double drop_path_;
  std::shared_ptr<LayerStore> store_;
  std::unique_ptr<StoredMemory> output_;    // the branch's
  std::unique_ptr<StoredMemory> d_output_;  // its gradient
};

}  // namespace

std::unique_ptr<Layer> make_residual(std::unique_ptr<Layer> branch, double drop_path,
                                     std::shared_ptr<LayerStore> store) {
  if (branch->input_shape() != branch->output_shape()) {
    throw Error(fmt::format("layer {}: a residual branch that changes the shape", branch->name()));
  }
  return std::make_unique<Residual>(std::move(branch), drop_path, std::move(store));
}

}  // namespace paceline
