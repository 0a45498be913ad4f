// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_parts.h"
#include "common/core/kernels_stored.h"

namespace paceline {

namespace {

class GpuConv2d final : public Layer {
 public:
  GpuConv2d(GpuContextPtr context, std::string name, SampleShape input, const ConvShape& conv,
            Activation activation, ReluMask mask)
      : Layer(std::move(name), input, convolved(input, conv)),
        context_(std::move(context)),
        conv_(conv),
        relu_(activation == Activation::relu),
        mask_(mask),
        filter_{conv.outputs, conv.kernel * conv.kernel, input.channels} {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> all{
        {"weight", {conv_.outputs, filter_.channels, conv_.kernel, conv_.kernel}, fan_in()}};
    if (conv_.bias) {
      all.push_back({"bias", {conv_.outputs}, fan_in()});
    }
    return all;
  }
  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(output_shape().elements() * fan_in());
  }

  void forward(const ForwardPass& pass) override {
    weight_ = operand_filter(*context_, pass.weights, filter_, copy_);
    const cuda::Convolution shape = extents(pass.samples);
    Gpu& gpu = context_->gpu();
    gpu.check(context_->math().convolve(gpu.math(), &shape, pass.input, weight_, pass.output),
              name());
    if (conv_.bias || relu_) {
      add_bias(pass);
    }
  }

  void backward(const BackwardPass& pass) override {
    if (conv_.bias) {
      queue_bias_gradient(*context_, relu_ && mask_ == ReluMask::here ? pass.output : nullptr,
                          pass.d_output, pass.gradients + filter_.elements(), rows(pass.samples),
                          conv_.outputs);
    }
    const cuda::Convolution shape = extents(pass.samples);
    Gpu& gpu = context_->gpu();
    const bool direct = !copies_filter(context_->format(), filter_);
    void* const d_filter = direct ? pass.gradients : context_->scratch(0, copy_bytes());
    gpu.check(context_->math().convolve_filter_gradient(gpu.math(), &shape, pass.input,
                                                        pass.d_output, d_filter),
              name());
    if (!direct) {
      context_->with_format([&]<typename T>(T) {
        const kernels::Transposed<T, float> back{static_cast<const T*>(d_filter), pass.gradients,
                                                 filter_.positions, filter_.channels};
        gpu.each(filter_.elements(), back, name());
      });
    }
    if (pass.d_input != nullptr) {
      gpu.check(context_->math().convolve_input_gradient(gpu.math(), &shape, pass.d_output, weight_,
                                                         pass.d_input),
                name());
    }
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override { return copy_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& /*batch*/) const override {
    return copies_filter(context_->format(), filter_) ? copy_bytes() : 0;
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    ScratchAreas areas{};
    if (conv_.bias) {
      areas = bias_scratch(rows(batch.samples), conv_.outputs);
    }
    areas[0] = planned_bytes(batch);
    return areas;
  }

 private:
  [[nodiscard]] std::int64_t fan_in() const noexcept {
    return filter_.positions * filter_.channels;
  }
  [[nodiscard]] std::int64_t rows(std::int64_t samples) const noexcept {
    return samples * output_shape().height * output_shape().width;
  }
  [[nodiscard]] std::size_t copy_bytes() const noexcept {
    return static_cast<std::size_t>(filter_.elements()) * context_->element_bytes();
  }
  [[nodiscard]] cuda::Convolution extents(std::int64_t samples) const {
    cuda::Convolution shape{};
    shape.format = context_->format();
    shape.kernel = static_cast<std::int32_t>(conv_.kernel);
    shape.stride = static_cast<std::int32_t>(conv_.stride);
    shape.padding = static_cast<std::int32_t>(conv_.padding);
    shape.samples = samples;
    shape.height = input_shape().height;
    shape.width = input_shape().width;
    shape.channels = input_shape().channels;
    shape.outputs = conv_.outputs;
    return shape;
  }
  void add_bias(const ForwardPass& pass) const {
    const float* const bias = conv_.bias ? pass.weights + filter_.elements() : nullptr;
    context_->with_format([&]<typename T>(T) {
      const kernels::BiasActivation<T> finish{as_stored<T>(pass.output), bias, conv_.outputs,
                                              relu_};
      context_->gpu().each(rows(pass.samples) * conv_.outputs, finish, name());
    });
  }

  GpuContextPtr context_;
  ConvShape conv_;
  bool relu_;
  ReluMask mask_;
  FilterShape filter_;
  GpuMemory copy_;
  const void* weight_ = nullptr;  // what products multiply, from forward to backward
};

}  // namespace

std::unique_ptr<Layer> make_gpu_conv2d(GpuContextPtr context, std::string name, SampleShape input,
                                       const ConvShape& shape, Activation activation,
                                       ReluMask mask) {
  check_convolution(name, input, shape);
  return std::make_unique<GpuConv2d>(std::move(context), std::move(name), input, shape, activation,
                                     mask);
}

}  // namespace paceline
