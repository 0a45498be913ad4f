// SPDX-License-Identifier: Apache-2.0
// Both ends of a transformer, and the matrix that they share.
#include <algorithm>
#include <vector>

#include "common/core/cpu/gemm.h"
#include "common/core/cpu/transformer.h"
#include "common/core/kernels_transformer.h"

namespace paceline {

/// What the embedding and the head of one model tell each other within a step.
class TiedEmbedding {
 public:
  const float* tokens = nullptr;     ///< [vocabulary, width], where forward found them
  std::vector<float> head_gradient;  ///< the head's part of their gradient, for the embedding
};

namespace {

class TokenEmbedding final : public Layer {
 public:
  TokenEmbedding(std::shared_ptr<TiedEmbedding> tied, const TransformerShape& shape)
      : Layer("embedding", {shape.positions, 1, 1}, {shape.positions, 1, shape.width}),
        tied_(std::move(tied)),
        shape_(shape) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    return embedding_parameters(shape_);
  }
  [[nodiscard]] double flops() const override {
    return static_cast<double>(output_shape().elements());
  }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::nothing; }

  void forward(const ForwardPass& pass) override {
    tied_->tokens = pass.weights;
    const float* positions = pass.weights + shape_.vocabulary * shape_.width;
    for (std::int64_t row = 0; row < pass.samples * shape_.positions; ++row) {
      const float* token = pass.weights + token_at(pass.input, row) * shape_.width;
      const float* position = positions + row % shape_.positions * shape_.width;
      kernels::for_each(shape_.width, kernels::AddScaled{token, position,
                                                         pass.output + row * shape_.width, 1.0F});
    }
  }

  void backward(const BackwardPass& pass) override {
    float* const d_positions = pass.gradients + shape_.vocabulary * shape_.width;
    std::ranges::copy(tied_->head_gradient, pass.gradients);
    std::fill_n(d_positions, shape_.positions * shape_.width, 0.0F);
    const auto add = [&](float* to, const float* d) {
      kernels::for_each(shape_.width, kernels::AddScaled{to, d, to, 1.0F});
    };
    for (std::int64_t row = 0; row < pass.samples * shape_.positions; ++row) {
      const float* d = pass.d_output + row * shape_.width;
      add(pass.gradients + token_at(pass.input, row) * shape_.width, d);
      add(d_positions + row % shape_.positions * shape_.width, d);
    }
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return tied_->head_gradient.capacity() * sizeof(float);
  }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& /*batch*/) const override {
    return static_cast<std::size_t>(shape_.vocabulary * shape_.width) * sizeof(float);
  }

 private:
  [[nodiscard]] std::int64_t token_at(const float* input, std::int64_t row) const {
    return std::clamp(static_cast<std::int64_t>(input[row]), std::int64_t{0},
                      shape_.vocabulary - 1);
  }

  std::shared_ptr<TiedEmbedding> tied_;
  TransformerShape shape_;
};

class TiedHead final : public Layer {
 public:
  TiedHead(std::shared_ptr<TiedEmbedding> tied, const TransformerShape& shape)
      : Layer("head", {shape.positions, 1, shape.width}, {shape.positions, 1, shape.vocabulary}),
        tied_(std::move(tied)),
        shape_(shape) {}

  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(shape_.positions * shape_.width * shape_.vocabulary);
  }

  void forward(const ForwardPass& pass) override {
    gemm(pass.samples * shape_.positions, shape_.vocabulary, shape_.width,
         {pass.input, shape_.width}, {tied_->tokens, shape_.width, true}, pass.output,
         shape_.vocabulary);
  }

  void backward(const BackwardPass& pass) override {
    const std::int64_t rows = pass.samples * shape_.positions;
    tied_->head_gradient.resize(static_cast<std::size_t>(shape_.vocabulary * shape_.width));
    gemm(shape_.vocabulary, shape_.width, rows, {pass.d_output, shape_.vocabulary, true},
         {pass.input, shape_.width}, tied_->head_gradient.data(), shape_.width);
    gemm(rows, shape_.width, shape_.vocabulary, {pass.d_output, shape_.vocabulary},
         {tied_->tokens, shape_.width}, pass.d_input, shape_.width);
  }

 private:
  std::shared_ptr<TiedEmbedding> tied_;
  TransformerShape shape_;
};

}  // namespace

std::shared_ptr<TiedEmbedding> make_tied_embedding() {
  return std::make_shared<TiedEmbedding>();
}

std::unique_ptr<Layer> make_token_embedding(std::shared_ptr<TiedEmbedding> tied,
                                            const TransformerShape& shape) {
  return std::make_unique<TokenEmbedding>(std::move(tied), shape);
}

std::unique_ptr<Layer> make_tied_head(std::shared_ptr<TiedEmbedding> tied,
                                      const TransformerShape& shape) {
  return std::make_unique<TiedHead>(std::move(tied), shape);
}

}  // namespace paceline
