// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_parts.h"
#include "common/core/kernels_stored.h"

namespace paceline {

namespace {

class GpuLinear final : public Layer {
 public:
  GpuLinear(GpuContextPtr context, std::string name, SampleShape input, std::int64_t outputs,
            Activation activation)
      : Layer(std::move(name), input, {1, 1, outputs}),
        context_(std::move(context)),
        relu_(activation == Activation::relu) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {outputs(), inputs()}, inputs()}, {"bias", {outputs()}, inputs()}};
  }
  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(inputs() * outputs());
  }

  /// y = act(x·Wᵀ + b)
  void forward(const ForwardPass& pass) override {
    weight_ = operand_filter(*context_, pass.weights, {outputs(), 1, inputs()}, copy_);
    cuda::Matmul product = plain(pass.samples, outputs(), inputs());
    product.a = pass.input;
    product.a_stride = inputs();
    product.b = weight_;
    product.b_transposed = 1;
    product.b_stride = inputs();
    product.c = pass.output;
    product.c_stride = outputs();
    product.bias = pass.weights + outputs() * inputs();
    product.epilogue = relu_ ? cuda::Epilogue::bias_relu : cuda::Epilogue::bias;
    run(product);
  }

  /// dW = dyᵀ·x, dx = dy·W
  void backward(const BackwardPass& pass) override {
    queue_bias_gradient(*context_, relu_ ? pass.output : nullptr, pass.d_output,
                        pass.gradients + outputs() * inputs(), pass.samples, outputs());
    cuda::Matmul weights = plain(outputs(), inputs(), pass.samples);
    weights.fp32_output = 1;
    weights.a = pass.d_output;
    weights.a_transposed = 1;
    weights.a_stride = outputs();
    weights.b = pass.input;
    weights.b_stride = inputs();
    weights.c = pass.gradients;
    weights.c_stride = inputs();
    run(weights);
    if (pass.d_input == nullptr) {
      return;
    }
    cuda::Matmul data = plain(pass.samples, inputs(), outputs());
    data.a = pass.d_output;
    data.a_stride = outputs();
    data.b = weight_;
    data.b_stride = inputs();
    data.c = pass.d_input;
    data.c_stride = inputs();
    run(data);
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override { return copy_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& /*batch*/) const override {
    return context_->format() == Precision::fp32
               ? 0
               : static_cast<std::size_t>(outputs() * inputs()) * context_->element_bytes();
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    return bias_scratch(batch.samples, outputs());
  }

 private:
  [[nodiscard]] std::int64_t inputs() const noexcept { return input_shape().elements(); }
  [[nodiscard]] std::int64_t outputs() const noexcept { return output_shape().channels; }
  [[nodiscard]] cuda::Matmul plain(std::int64_t rows, std::int64_t columns,
                                   std::int64_t inner) const {
    cuda::Matmul product{};
    product.format = context_->format();
    product.rows = rows;
    product.columns = columns;
    product.inner = inner;
    product.batch = 1;
    product.alpha = 1.0F;
    return product;
  }
  void run(const cuda::Matmul& product) const {
    Gpu& gpu = context_->gpu();
    gpu.check(context_->math().matmul(gpu.math(), &product), name());
  }

  GpuContextPtr context_;
  bool relu_;
  GpuMemory copy_;
  const void* weight_ = nullptr;  // what products multiply, from forward to backward
};

class GpuFlatten final : public Layer {
 public:
  GpuFlatten(GpuContextPtr context, std::string name, SampleShape input)
      : Layer(std::move(name), input, {1, 1, input.elements()}), context_(std::move(context)) {}

  [[nodiscard]] double flops() const override { return 0.0; }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::nothing; }

  void forward(const ForwardPass& pass) override {
    transpose(pass.input, pass.output, pass.samples, positions(), input_shape().channels);
  }
  void backward(const BackwardPass& pass) override {
    if (pass.d_input != nullptr) {
      transpose(pass.d_output, pass.d_input, pass.samples, input_shape().channels, positions());
    }
  }

 private:
  [[nodiscard]] std::int64_t positions() const noexcept {
    return input_shape().height * input_shape().width;
  }
  void transpose(const float* in, float* out, std::int64_t samples, std::int64_t rows,
                 std::int64_t columns) const {
    context_->with_format([&]<typename T>(T) {
      context_->gpu().each(
          samples * rows * columns,
          kernels::Transposed<T, T>{as_stored<T>(in), as_stored<T>(out), rows, columns}, name());
    });
  }

  GpuContextPtr context_;
};

}  // namespace

std::unique_ptr<Layer> make_gpu_linear(GpuContextPtr context, std::string name, SampleShape input,
                                       std::int64_t outputs, Activation activation) {
  check_flat(name, input);
  return std::make_unique<GpuLinear>(std::move(context), std::move(name), input, outputs,
                                     activation);
}

std::unique_ptr<Layer> make_gpu_flatten(GpuContextPtr context, std::string name,
                                        SampleShape input) {
  return std::make_unique<GpuFlatten>(std::move(context), std::move(name), input);
}

}  // namespace paceline
