// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_parts.h"
#include "common/core/kernels_windows.h"

namespace paceline {

namespace {

/// Pooling of a layer through cuDNN, where cuda.pool asks for it and cuDNN computes it.
class DnnPooling {
 public:
  /// `windows`: how the layer pools; its samples and format are set here.
  DnnPooling(const GpuContext& context, const cuda::Pool& windows)
      : context_(context), shape_(windows) {
    shape_.format = context.format();
  }

  /// False where nothing was queued: the layer's own kernels are to pool. Throws Error as
  /// computed_by_dnn does.
  bool forward(const Layer& layer, const ForwardPass& pass, std::uint8_t* winners) {
    shape_.samples = pass.samples;
    used_ = context_.gpu().pool() != LayerEngine::own &&
            computed_by_dnn(context_, context_.gpu().pool(), obstacle(pass, winners), layer,
                            pass.samples, "cuda.pool");
    if (used_) {
      context_.gpu().check(
          context_.math().pool(context_.gpu().math(), &shape_, pass.input, pass.output, winners),
          layer.name());
    }
    return used_;
  }
  /// Of the forward before; false as well where its gradients are misaligned.
  [[nodiscard]] bool backward(const Layer& layer, const BackwardPass& pass,
                              const std::uint8_t* winners) const {
    if (!used_ || misaligned({pass.d_output, pass.d_input}) != nullptr) {
      return false;
    }
    context_.gpu().check(context_.math().pool_gradient(context_.gpu().math(), &shape_,
                                                       pass.d_output, winners, pass.d_input),
                         layer.name());
    return true;
  }
  [[nodiscard]] bool used() const noexcept { return used_; }

 private:
  [[nodiscard]] const char* obstacle(const ForwardPass& pass, const std::uint8_t* winners) const {
    const char* const lies = misaligned({pass.input, pass.output, winners});
    return lies != nullptr ? lies : context_.math().pool_obstacle(context_.gpu().math(), &shape_);
  }

  const GpuContext& context_;
  cuda::Pool shape_;
  bool used_ = false;
};

/// Of windows over `in`, without samples.
cuda::Pool maxima_of(const SampleShape& in, const SampleShape& out, std::int64_t window,
                     std::int64_t stride, std::int64_t padding) {
  return {Precision::fp32,
          cuda::Pooling::maximum,
          0,
          in.height,
          in.width,
          in.channels,
          out.height,
          out.width,
          window,
          window,
          stride,
          padding};
}

cuda::Pool mean_of(const SampleShape& in) {
  return {Precision::fp32,
          cuda::Pooling::average,
          0,
          in.height,
          in.width,
          in.channels,
          1,
          1,
          in.height,
          in.width,
          1,
          0};
}

/// A maximum whose winners are kept from forward to backward.
class GpuPool : public Layer {
 public:
  GpuPool(GpuContextPtr context, std::string name, const SampleShape& input,
          const SampleShape& output, const cuda::Pool& windows)
      : Layer(std::move(name), input, output),
        context_(std::move(context)),
        dnn_(*context_, windows) {}

  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::nothing; }
  [[nodiscard]] std::size_t held_bytes() const noexcept override { return winners_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    return static_cast<std::size_t>(batch.samples * output_shape().elements());
  }

 protected:
  [[nodiscard]] const GpuContext& context() const noexcept { return *context_; }
  std::uint8_t* reserve(std::int64_t samples) {
    context_->grow(winners_, static_cast<std::size_t>(samples * output_shape().elements()),
                   "places of maxima");
    return winners();
  }
  [[nodiscard]] std::uint8_t* winners() const noexcept { return winners_.as<std::uint8_t>(); }
  [[nodiscard]] DnnPooling& dnn() noexcept { return dnn_; }

 private:
  GpuContextPtr context_;
  DnnPooling dnn_;
  GpuMemory winners_;
};

class GpuMaxPool final : public GpuPool {
 public:
  GpuMaxPool(GpuContextPtr context, std::string name, const SampleShape& input, bool after_relu)
      : GpuPool(std::move(context), std::move(name), input, halved(input),
                maxima_of(input, halved(input), 2, 2, 0)),
        after_relu_(after_relu) {}

  [[nodiscard]] double flops() const override {
    return 3.0 * static_cast<double>(output_shape().elements());
  }

  void forward(const ForwardPass& pass) override {
    std::uint8_t* const winner = reserve(pass.samples);
    if (dnn().forward(*this, pass, winner)) {
      return;
    }
    context().with_format([&]<typename T>(T) {
      const kernels::WindowMax<T> unit{as_stored<T>(pass.input), as_stored<T>(pass.output), winner,
                                       windows()};
      context().gpu().each(unit.units(pass.samples), unit, name());
    });
  }

  void backward(const BackwardPass& pass) override {
    if (pass.d_input == nullptr) {
      return;
    }
    if (after_relu_ && dnn().used()) {
      queue_relu_mask(context(), *this, pass);
    }
    if (dnn().backward(*this, pass, winners())) {
      return;
    }
    context().with_format([&]<typename T>(T) {
      const kernels::MaxPoolSpread<T> unit{
          as_stored<T>(pass.output),  winners(),  as_stored<T>(pass.d_output),
          as_stored<T>(pass.d_input), geometry(), after_relu_};
      context().gpu().each(unit.units(pass.samples), unit, name());
    });
  }

 private:
  [[nodiscard]] static SampleShape halved(const SampleShape& input) noexcept {
    return {input.height / 2, input.width / 2, input.channels};
  }
  [[nodiscard]] kernels::PoolGeometry geometry() const noexcept {
    return {input_shape().height, input_shape().width, input_shape().channels};
  }
  [[nodiscard]] kernels::WindowGeometry windows() const noexcept {
    const SampleShape& in = input_shape();
    return {in.height, in.width, in.channels, in.height / 2, in.width / 2, 2, 2, 0};
  }
  bool after_relu_;
};

class GpuWindowMaxPool final : public GpuPool {
 public:
  GpuWindowMaxPool(GpuContextPtr context, std::string name, const SampleShape& input,
                   const kernels::WindowGeometry& geometry)
      : GpuPool(
            std::move(context), std::move(name), input, pooled(geometry),
            maxima_of(input, pooled(geometry), geometry.kernel, geometry.stride, geometry.padding)),
        geometry_(geometry) {}

  [[nodiscard]] double flops() const override {
    return static_cast<double>(output_shape().elements() * geometry_.kernel * geometry_.kernel);
  }

  void forward(const ForwardPass& pass) override {
    std::uint8_t* const winner = reserve(pass.samples);
    if (dnn().forward(*this, pass, winner)) {
      return;
    }
    context().with_format([&]<typename T>(T) {
      const kernels::WindowMax<T> unit{as_stored<T>(pass.input), as_stored<T>(pass.output), winner,
                                       geometry_};
      context().gpu().each(unit.units(pass.samples), unit, name());
    });
  }

  void backward(const BackwardPass& pass) override {
    if (pass.d_input == nullptr || dnn().backward(*this, pass, winners())) {
      return;
    }
    context().with_format([&]<typename T>(T) {
      const kernels::WindowMaxGather<T> unit{winners(), as_stored<T>(pass.d_output),
                                             as_stored<T>(pass.d_input), geometry_};
      context().gpu().each(unit.units(pass.samples), unit, name());
    });
  }

 private:
  [[nodiscard]] static SampleShape pooled(const kernels::WindowGeometry& geometry) noexcept {
    return {geometry.rows, geometry.columns, geometry.channels};
  }
  kernels::WindowGeometry geometry_;
};

class GpuGlobalAverage final : public Layer {
 public:
  GpuGlobalAverage(GpuContextPtr context, std::string name, SampleShape input)
      : Layer(std::move(name), input, {1, 1, input.channels}),
        context_(std::move(context)),
        dnn_(*context_, mean_of(input)) {}

  [[nodiscard]] double flops() const override {
    return static_cast<double>(input_shape().elements());
  }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::activations; }

  void forward(const ForwardPass& pass) override {
    if (dnn_.forward(*this, pass, nullptr)) {
      return;
    }
    context_->with_format([&]<typename T>(T) {
      const kernels::ChannelAverage<T> mean{as_stored<T>(pass.input), as_stored<T>(pass.output),
                                            positions(), input_shape().channels};
      context_->gpu().each(mean.units(pass.samples), mean, name());
    });
  }

  void backward(const BackwardPass& pass) override {
    if (pass.d_input == nullptr || dnn_.backward(*this, pass, nullptr)) {
      return;
    }
    context_->with_format([&]<typename T>(T) {
      const kernels::ChannelAverageGradient<T> spread{as_stored<T>(pass.d_output),
                                                      as_stored<T>(pass.d_input), positions(),
                                                      input_shape().channels};
      context_->gpu().each(spread.units(pass.samples), spread, name());
    });
  }

 private:
  [[nodiscard]] std::int64_t positions() const noexcept {
    return input_shape().height * input_shape().width;
  }
  GpuContextPtr context_;
  DnnPooling dnn_;
};

}  // namespace

std::unique_ptr<Layer> make_gpu_max_pool(GpuContextPtr context, std::string name, SampleShape input,
                                         bool after_relu) {
  check_max_pool(name, input);
  return std::make_unique<GpuMaxPool>(std::move(context), std::move(name), input, after_relu);
}

std::unique_ptr<Layer> make_gpu_window_max_pool(GpuContextPtr context, std::string name,
                                                SampleShape input, std::int64_t kernel,
                                                std::int64_t stride, std::int64_t padding) {
  const kernels::WindowGeometry geometry = checked_window(name, input, kernel, stride, padding);
  return std::make_unique<GpuWindowMaxPool>(std::move(context), std::move(name), input, geometry);
}

std::unique_ptr<Layer> make_gpu_global_average(GpuContextPtr context, std::string name,
                                               SampleShape input) {
  return std::make_unique<GpuGlobalAverage>(std::move(context), std::move(name), input);
}

}  // namespace paceline
