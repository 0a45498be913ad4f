// SPDX-License-Identifier: Apache-2.0
// Both ends of a transformer on a GPU, and the matrix that they share.
#include "common/core/gpu/gpu_transformer.h"
#include "common/core/gpu/gpu_transformer_parts.h"
#include "common/core/kernels_sequence.h"

namespace paceline {

/// What the embedding and the head of one model tell each other within a step; addresses of the
/// device.
class GpuTiedEmbedding {
 public:
  const float* tokens = nullptr;  ///< [vocabulary, width], where forward found them
  GpuMemory head_gradient;        ///< the head's part of their gradient, for the embedding
};

namespace {

class GpuTokenEmbedding final : public Layer {
 public:
  GpuTokenEmbedding(GpuContextPtr context, std::shared_ptr<GpuTiedEmbedding> tied,
                    const TransformerShape& shape)
      : Layer("embedding", {shape.positions, 1, 1}, {shape.positions, 1, shape.width}),
        context_(std::move(context)),
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
    context_->with_format([&]<typename T>(T) {
      const kernels::EmbedTokens<T> embed{pass.input,
                                          pass.weights,
                                          pass.weights + token_elements(),
                                          as_stored<T>(pass.output),
                                          shape_.vocabulary,
                                          shape_.positions,
                                          shape_.width};
      context_->gpu().each(embed.units(pass.samples * shape_.positions), embed, name());
    });
  }

  void backward(const BackwardPass& pass) override {
    Gpu& gpu = context_->gpu();
    const std::int64_t positions = output_shape().elements();
    context_->with_format([&]<typename T>(T) {
      const kernels::TokenGradient<T> tokens{
          pass.input,     as_stored<T>(pass.d_output),     tied_->head_gradient.as<float>(),
          pass.gradients, pass.samples * shape_.positions, shape_.vocabulary,
          shape_.width};
      gpu.rows(shape_.vocabulary * tokens.tiles(), tokens, "the tokens' gradient");
      gpu.each(
          positions,
          kernels::PositionGradient<T>{as_stored<T>(pass.d_output),
                                       pass.gradients + token_elements(), pass.samples, positions},
          "the positions' gradient");
    });
  }

 private:
  [[nodiscard]] std::int64_t token_elements() const noexcept {
    return shape_.vocabulary * shape_.width;
  }

  GpuContextPtr context_;
  std::shared_ptr<GpuTiedEmbedding> tied_;
  TransformerShape shape_;
};

class GpuRowNormLayer final : public Layer {
 public:
  GpuRowNormLayer(GpuContextPtr context, std::string name, const TransformerShape& shape)
      : Layer(std::move(name), {shape.positions, 1, shape.width},
              {shape.positions, 1, shape.width}),
        context_(std::move(context)) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    return row_norm_parameters(width());
  }
  [[nodiscard]] double flops() const override {
    return 8.0 * static_cast<double>(input_shape().elements());
  }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::activations; }

  void forward(const ForwardPass& pass) override {
    const std::int64_t rows = pass.samples * input_shape().height;
    context_->grow(statistics_, statistics_bytes(rows), name());
    queue_row_norm(*context_, rows, width(), operands(pass.weights, rows), pass.input, pass.output);
  }
  void backward(const BackwardPass& pass) override {
    const std::int64_t rows = pass.samples * input_shape().height;
    queue_row_norm_gradient(*context_, rows, width(), operands(pass.weights, rows), pass.input,
                            pass.d_output, nullptr, pass.d_input, pass.gradients);
  }
  [[nodiscard]] std::size_t held_bytes() const noexcept override { return statistics_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    return statistics_bytes(batch.samples * input_shape().height);
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    return row_norm_scratch(batch.samples * input_shape().height, width());
  }

 private:
  [[nodiscard]] std::int64_t width() const noexcept { return input_shape().channels; }
  [[nodiscard]] static std::size_t statistics_bytes(std::int64_t rows) {
    return static_cast<std::size_t>(2 * rows) * sizeof(float);
  }
  [[nodiscard]] GpuRowNorm operands(const float* weights, std::int64_t rows) const {
    return {weights, statistics_.as<float>(), statistics_.as<float>() + rows};
  }

  GpuContextPtr context_;
  GpuMemory statistics_;  // means, then inverses
};

class GpuTiedHead final : public Layer {
 public:
  GpuTiedHead(GpuContextPtr context, std::shared_ptr<GpuTiedEmbedding> tied,
              const TransformerShape& shape)
      : Layer("head", {shape.positions, 1, shape.width}, {shape.positions, 1, shape.vocabulary}),
        context_(std::move(context)),
        tied_(std::move(tied)),
        shape_(shape) {}

  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(shape_.positions * shape_.width * shape_.vocabulary);
  }

  /// logits = x·tokenᵀ
  void forward(const ForwardPass& pass) override {
    const std::int64_t rows = pass.samples * shape_.positions;
    tokens_ = operand_filter(*context_, tied_->tokens, {shape_.vocabulary, 1, shape_.width}, copy_);
    cuda::Matmul product = plain_product(*context_, rows, shape_.vocabulary, shape_.width);
    product.a = pass.input;
    product.a_stride = shape_.width;
    product.b = tokens_;
    product.b_transposed = 1;
    product.b_stride = shape_.width;
    product.c = pass.output;
    product.c_stride = shape_.vocabulary;
    queue_product(*context_, product, name());
  }

  /// d_token = dlogitsᵀ·x (the head's part), dx = dlogits·token
  void backward(const BackwardPass& pass) override {
    const std::int64_t rows = pass.samples * shape_.positions;
    context_->grow(tied_->head_gradient, head_bytes(), "the head's gradient");
    cuda::Matmul weights = plain_product(*context_, shape_.vocabulary, shape_.width, rows);
    weights.fp32_output = 1;
    weights.a = pass.d_output;
    weights.a_transposed = 1;
    weights.a_stride = shape_.vocabulary;
    weights.b = pass.input;
    weights.b_stride = shape_.width;
    weights.c = tied_->head_gradient.as();
    weights.c_stride = shape_.width;
    queue_product(*context_, weights, name());
    cuda::Matmul data = plain_product(*context_, rows, shape_.width, shape_.vocabulary);
    data.a = pass.d_output;
    data.a_stride = shape_.vocabulary;
    data.b = tokens_;
    data.b_stride = shape_.width;
    data.c = pass.d_input;
    data.c_stride = shape_.width;
    queue_product(*context_, data, name());
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return copy_.size() + tied_->head_gradient.size();
  }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& /*batch*/) const override {
    const std::size_t copied =
        context_->format() == Precision::fp32 ? 0 : context_->element_bytes();
    return head_bytes() + static_cast<std::size_t>(shape_.vocabulary * shape_.width) * copied;
  }

 private:
  [[nodiscard]] std::size_t head_bytes() const noexcept {
    return static_cast<std::size_t>(shape_.vocabulary * shape_.width) * sizeof(float);
  }

  GpuContextPtr context_;
  std::shared_ptr<GpuTiedEmbedding> tied_;
  TransformerShape shape_;
  GpuMemory copy_;
  const void* tokens_ = nullptr;  // what products multiply, from forward to backward
};

}  // namespace

std::shared_ptr<GpuTiedEmbedding> make_gpu_tied_embedding() {
  return std::make_shared<GpuTiedEmbedding>();
}

std::unique_ptr<Layer> make_gpu_token_embedding(GpuContextPtr context,
                                                std::shared_ptr<GpuTiedEmbedding> tied,
                                                const TransformerShape& shape) {
  return std::make_unique<GpuTokenEmbedding>(std::move(context), std::move(tied), shape);
}

std::unique_ptr<Layer> make_gpu_row_norm(GpuContextPtr context, std::string name,
                                         const TransformerShape& shape) {
  return std::make_unique<GpuRowNormLayer>(std::move(context), std::move(name), shape);
}

std::unique_ptr<Layer> make_gpu_tied_head(GpuContextPtr context,
                                          std::shared_ptr<GpuTiedEmbedding> tied,
                                          const TransformerShape& shape) {
  return std::make_unique<GpuTiedHead>(std::move(context), std::move(tied), shape);
}

}  // namespace paceline
