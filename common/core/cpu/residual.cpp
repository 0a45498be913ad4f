// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/residual.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/core/kernels.h"

namespace paceline {

namespace {

class Residual final : public Layer {
 public:
  Residual(std::unique_ptr<Layer> branch, double drop_path, Precision precision)
      : Layer(std::string(branch->name()), branch->input_shape(), branch->output_shape()),
        branch_(std::move(branch)),
        drop_path_(drop_path),
        precision_(precision) {}

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
    reserve(static_cast<std::size_t>(n));
    branch_->forward(
        {pass.samples, pass.input, output_.data(), pass.weights, pass.buffers, pass.training});
    round_values(precision_, std::span(output_).first(static_cast<std::size_t>(n)));
    const float scale = pass.training ? 1.0F : static_cast<float>(1.0 - drop_path_);
    kernels::for_each(n, kernels::AddScaled{pass.input, output_.data(), pass.output, scale});
  }

  void backward(const BackwardPass& pass) override {
    const std::int64_t n = pass.samples * output_shape().elements();
    std::copy_n(pass.d_output, n, d_output_.data());  // the branch may overwrite its own
    branch_->backward({pass.samples, pass.input, output_.data(), d_output_.data(), pass.d_input,
                       pass.weights, pass.gradients});
    if (pass.d_input != nullptr) {
      round_values(precision_, {pass.d_input, static_cast<std::size_t>(n)});
      kernels::for_each(n, kernels::AddScaled{pass.d_input, pass.d_output, pass.d_input, 1.0F});
    }
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return branch_->held_bytes() + (output_.capacity() + d_output_.capacity()) * sizeof(float);
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
  void reserve(std::size_t elements) {
    if (elements > output_.size()) {
      output_.resize(elements);
      d_output_.resize(elements);
    }
  }

  std::unique_ptr<Layer> branch_;
  double drop_path_;
  Precision precision_;
  std::vector<float> output_;    // the branch's
  std::vector<float> d_output_;  // its gradient
};

}  // namespace

std::unique_ptr<Layer> make_residual(std::unique_ptr<Layer> branch, double drop_path,
                                     Precision precision) {
  if (branch->input_shape() != branch->output_shape()) {
    throw Error(fmt::format("layer {}: a residual branch that changes the shape", branch->name()));
  }
  return std::make_unique<Residual>(std::move(branch), drop_path, precision);
}

}  // namespace paceline
