// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/cpu/gemm.h"
#include "common/core/cpu/transformer.h"
#include "common/core/kernels_transformer.h"

namespace paceline {

/// Memory within one backward call.
class TransformerScratch final : public SharedScratch {
 public:
  /// `floats` of it; what it held is lost.
  float* reserve(std::size_t floats) {
    memory_.grow(floats * sizeof(float));
    return memory_.as<float>().data();
  }
  [[nodiscard]] std::size_t bytes() const noexcept override { return memory_.size(); }

 private:
  Buffer memory_;
};

namespace {

/// Hands out the parts of a block of memory, or only counts them while `next` is null.
class Parts {
 public:
  explicit Parts(float* next) : next_(next) {}
  float* take(std::int64_t floats) {
    constexpr std::int64_t kLine = 16;
    const std::int64_t padded = (floats + kLine - 1) / kLine * kLine;
    total_ += static_cast<std::size_t>(padded);
    return next_ == nullptr ? nullptr : std::exchange(next_, next_ + padded);
  }
  [[nodiscard]] std::size_t total() const noexcept { return total_; }

 private:
  float* next_;
  std::size_t total_ = 0;
};

/// One norm's γ and β, its statistics, its gradients.
struct NormOperands {
  const float* gamma;  ///< then β
  float* mean;
  float* inverse;
};

void norm_rows(std::int64_t rows, std::int64_t width, const NormOperands& norm, const float* x,
               float* y) {
  kernels::for_rows(
      rows, kernels::RowNorm{x, norm.gamma, norm.gamma + width, y, norm.mean, norm.inverse, width});
}

/// dx = the norm's input gradient (+ addend); `gradients` gets dγ, then dβ.
void norm_rows_backward(std::int64_t rows, std::int64_t width, const NormOperands& norm,
                        const float* x, const float* dy, const float* addend, float* dx,
                        float* gradients) {
  kernels::for_column_tiles(
      width, kernels::RowNormParameterGradient{x, dy, norm.mean, norm.inverse, gradients,
                                               gradients + width, rows, width});
  if (dx != nullptr) {
    kernels::for_rows(rows, kernels::RowNormGradient{x, dy, norm.gamma, norm.mean, norm.inverse,
                                                     addend, dx, width});
  }
}

/// A linear map of every row: weights [outputs, inputs], then the bias.
struct RowLinear {
  std::int64_t inputs;
  std::int64_t outputs;
  /// y = x·Wᵀ + b (+ y with `accumulate`)
  void forward(std::int64_t rows, const float* weights, const float* x, float* y,
               bool accumulate = false) const {
    gemm(rows, outputs, inputs, {x, inputs}, {weights, inputs, true}, y, outputs, accumulate);
    kernels::for_rows(rows, kernels::AddBias{y, weights + outputs * inputs, outputs});
  }

  /// dW = dyᵀ·x, db = Σ dy, dx = dy·W
  void backward(std::int64_t rows, const float* weights, const float* x, float* dy, float* dx,
                float* gradients) const {
    gemm(outputs, inputs, rows, {dy, outputs, true}, {x, inputs}, gradients, inputs);
    kernels::for_column_tiles(
        outputs, kernels::BiasGradient{nullptr, dy, gradients + outputs * inputs, rows, outputs});
    gemm(rows, inputs, outputs, {dy, outputs}, {weights, inputs}, dx, inputs);
  }
};

class TransformerBlock final : public Layer {
 public:
  TransformerBlock(std::shared_ptr<TransformerScratch> scratch, std::string name,
                   const TransformerShape& shape)
      : Layer(std::move(name), {shape.positions, 1, shape.width},
              {shape.positions, 1, shape.width}),
        scratch_(std::move(scratch)),
        shape_(shape),
        qkv_{shape.width, 3 * shape.width},
        projection_{shape.width, shape.width},
        expand_{shape.width, 4 * shape.width},
        contract_{4 * shape.width, shape.width} {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    return block_parameters(shape_);
  }

  [[nodiscard]] double flops() const override { return block_flops(shape_); }

  void forward(const ForwardPass& pass) override {
    reserve(pass.samples);
    const std::int64_t rows = pass.samples * shape_.positions;
    const Weights w(pass.weights, shape_.width);
    norm_rows(rows, shape_.width, norm1(w), pass.input, kept_.normed1);
    qkv_.forward(rows, w.qkv, kept_.normed1, kept_.qkv);
    for (std::int64_t i = 0; i < pass.samples * shape_.heads; ++i) {
      attend(i);
    }
    std::copy_n(pass.input, rows * shape_.width, kept_.middle);
    projection_.forward(rows, w.projection, kept_.attended, kept_.middle, true);
    norm_rows(rows, shape_.width, norm2(w), kept_.middle, kept_.normed2);
    expand_.forward(rows, w.expand, kept_.normed2, kept_.expanded);
    kernels::for_each(rows * 4 * shape_.width, kernels::Gelu{kept_.expanded, kept_.activated});
    std::copy_n(kept_.middle, rows * shape_.width, pass.output);
    contract_.forward(rows, w.contract, kept_.activated, pass.output, true);
  }

  void backward(const BackwardPass& pass) override {
    const std::int64_t rows = pass.samples * shape_.positions;
    const std::int64_t c = shape_.width;
    const Weights w(pass.weights, shape_.width);
    const Gradients d(pass.gradients, shape_.width);
    const Scratch s = scratch_for(rows);
    contract_.backward(rows, w.contract, kept_.activated, pass.d_output, s.wide, d.contract);
    kernels::for_each(rows * 4 * c, kernels::GeluGradient{kept_.expanded, s.wide});
    expand_.backward(rows, w.expand, kept_.normed2, s.wide, s.narrow, d.expand);
    norm_rows_backward(rows, c, norm2(w), kept_.middle, s.narrow, pass.d_output, s.middle, d.norm2);
    projection_.backward(rows, w.projection, kept_.attended, s.middle, s.narrow, d.projection);
    for (std::int64_t i = 0; i < pass.samples * shape_.heads; ++i) {
      attend_backward(i, s.narrow, s.wide, s.square);
    }
    qkv_.backward(rows, w.qkv, kept_.normed1, s.wide, s.narrow, d.qkv);
    norm_rows_backward(rows, c, norm1(w), pass.input, s.narrow, s.middle, pass.d_input, d.norm1);
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override { return memory_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    Parts count(nullptr);
    static_cast<void>(lay_out(batch.samples, count));
    return count.total() * batch.element_bytes;
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    Parts count(nullptr);
    static_cast<void>(lay_out_scratch(batch.samples * shape_.positions, count));
    return {0, 0, 0, count.total() * batch.element_bytes};
  }

 private:
  using Weights = BlockTensors<const float>;
  using Gradients = BlockTensors<float>;

  /// Between forward and backward; [rows, …] but for the statistics.
  struct Kept {
    float* normed1;
    float* qkv;
    float* shares;  ///< of attention, [samples, heads, positions, positions]
    float* attended;
    float* middle;
    float* normed2;
    float* expanded;
    float* activated;
    float* mean1;
    float* inverse1;
    float* mean2;
    float* inverse2;
  };

  struct Scratch {
    float* wide;    ///< [rows, 4·width]
    float* narrow;  ///< [rows, width], as middle
    float* middle;
    float* square;  ///< [positions, positions]
  };

  [[nodiscard]] NormOperands norm1(const Weights& w) const {
    return {w.norm1, kept_.mean1, kept_.inverse1};
  }
  [[nodiscard]] NormOperands norm2(const Weights& w) const {
    return {w.norm2, kept_.mean2, kept_.inverse2};
  }

  [[nodiscard]] std::int64_t head_width() const noexcept { return shape_.width / shape_.heads; }
  [[nodiscard]] float scale() const noexcept {
    return 1.0F / std::sqrt(static_cast<float>(head_width()));
  }

  Kept lay_out(std::int64_t samples, Parts& parts) const {
    const std::int64_t rows = samples * shape_.positions;
    const std::int64_t c = shape_.width;
    Kept kept{};
    kept.normed1 = parts.take(rows * c);
    kept.qkv = parts.take(rows * 3 * c);
    kept.shares = parts.take(rows * shape_.heads * shape_.positions);
    kept.attended = parts.take(rows * c);
    kept.middle = parts.take(rows * c);
    kept.normed2 = parts.take(rows * c);
    kept.expanded = parts.take(rows * 4 * c);
    kept.activated = parts.take(rows * 4 * c);
    for (float** statistics : {&kept.mean1, &kept.inverse1, &kept.mean2, &kept.inverse2}) {
      *statistics = parts.take(rows);
    }
    return kept;
  }

  void reserve(std::int64_t samples) {
    if (samples <= capacity_) {
      return;
    }
    Parts count(nullptr);
    static_cast<void>(lay_out(samples, count));
    capacity_ = 0;
    memory_.grow(count.total() * sizeof(float));
    Parts parts(memory_.as<float>().data());
    kept_ = lay_out(samples, parts);
    capacity_ = samples;
  }

  Scratch lay_out_scratch(std::int64_t rows, Parts& parts) const {
    Scratch s{};
    s.wide = parts.take(rows * 4 * shape_.width);
    s.narrow = parts.take(rows * shape_.width);
    s.middle = parts.take(rows * shape_.width);
    s.square = parts.take(shape_.positions * shape_.positions);
    return s;
  }

  [[nodiscard]] Scratch scratch_for(std::int64_t rows) const {
    Parts count(nullptr);
    static_cast<void>(lay_out_scratch(rows, count));
    Parts parts(scratch_->reserve(count.total()));
    return lay_out_scratch(rows, parts);
  }

  /// Where sample i / heads keeps head i % heads in [rows, columns].
  [[nodiscard]] std::int64_t head_begin(std::int64_t i, std::int64_t columns) const {
    return i / shape_.heads * shape_.positions * columns + i % shape_.heads * head_width();
  }

  /// P = softmax(q·kᵀ/√d), o = P·v
  void attend(std::int64_t i) const {
    const std::int64_t t = shape_.positions;
    const std::int64_t c = shape_.width;
    const float* q = kept_.qkv + head_begin(i, 3 * c);
    float* shares = kept_.shares + i * t * t;
    gemm(t, t, head_width(), {q, 3 * c}, {q + c, 3 * c, true}, shares, t);
    kernels::for_rows(t, kernels::CausalSoftmax{shares, scale(), t});
    gemm(t, head_width(), t, {shares, t}, {q + 2 * c, 3 * c}, kept_.attended + head_begin(i, c), c);
  }

  /// dv = Pᵀ·do, dP = do·vᵀ, dS by the softmax, dq = dS·k, dk = dSᵀ·q
  void attend_backward(std::int64_t i, const float* d_attended, float* d_qkv,
                       float* d_shares) const {
    const std::int64_t t = shape_.positions;
    const std::int64_t c = shape_.width;
    const std::int64_t d = head_width();
    const float* q = kept_.qkv + head_begin(i, 3 * c);
    float* dq = d_qkv + head_begin(i, 3 * c);
    const float* shares = kept_.shares + i * t * t;
    const float* d_out = d_attended + head_begin(i, c);
    gemm(t, d, t, {shares, t, true}, {d_out, c}, dq + 2 * c, 3 * c);
    gemm(t, t, d, {d_out, c}, {q + 2 * c, 3 * c, true}, d_shares, t);
    kernels::for_rows(t, kernels::CausalSoftmaxGradient{shares, d_shares, scale(), t});
    gemm(t, d, t, {d_shares, t}, {q + c, 3 * c}, dq, 3 * c);
    gemm(t, d, t, {d_shares, t, true}, {q, 3 * c}, dq + c, 3 * c);
  }

  std::shared_ptr<TransformerScratch> scratch_;
  TransformerShape shape_;
  RowLinear qkv_;
  RowLinear projection_;
  RowLinear expand_;
  RowLinear contract_;
  std::int64_t capacity_ = 0;  // samples
  Buffer memory_;
  Kept kept_{};
};

class RowNormLayer final : public Layer {
 public:
  RowNormLayer(std::string name, const TransformerShape& shape)
      : Layer(std::move(name), {shape.positions, 1, shape.width},
              {shape.positions, 1, shape.width}) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    return row_norm_parameters(input_shape().channels);
  }
  [[nodiscard]] double flops() const override {
    return 8.0 * static_cast<double>(input_shape().elements());
  }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::activations; }

  void forward(const ForwardPass& pass) override {
    const std::int64_t rows = pass.samples * input_shape().height;
    statistics_.resize(std::max(statistics_.size(), static_cast<std::size_t>(2 * rows)));
    norm_rows(rows, input_shape().channels, operands(pass.weights, rows), pass.input, pass.output);
  }
  void backward(const BackwardPass& pass) override {
    const std::int64_t rows = pass.samples * input_shape().height;
    norm_rows_backward(rows, input_shape().channels, operands(pass.weights, rows), pass.input,
                       pass.d_output, nullptr, pass.d_input, pass.gradients);
  }
  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return statistics_.capacity() * sizeof(float);
  }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    return static_cast<std::size_t>(2 * batch.samples * input_shape().height) * sizeof(float);
  }

 private:
  NormOperands operands(const float* weights, std::int64_t rows) {
    return {weights, statistics_.data(), statistics_.data() + rows};
  }

  std::vector<float> statistics_;  // means, then inverses
};

}  // namespace

std::shared_ptr<TransformerScratch> make_transformer_scratch() {
  return std::make_shared<TransformerScratch>();
}

std::shared_ptr<SharedScratch> as_shared_scratch(std::shared_ptr<TransformerScratch> scratch) {
  return scratch;
}

std::unique_ptr<Layer> make_transformer_block(std::shared_ptr<TransformerScratch> scratch,
                                              std::string name, const TransformerShape& shape) {
  return std::make_unique<TransformerBlock>(std::move(scratch), std::move(name), shape);
}

std::unique_ptr<Layer> make_row_norm(std::string name, const TransformerShape& shape) {
  return std::make_unique<RowNormLayer>(std::move(name), shape);
}

}  // namespace paceline
