// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_model.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_sequential.h"
#include "common/core/gpu/gpu_transformer.h"

namespace paceline {

namespace {

class GpuStoredMemory final : public StoredMemory {
 public:
  explicit GpuStoredMemory(GpuContextPtr context) : context_(std::move(context)) {}
  void grow(std::size_t bytes) override { context_->grow(memory_, bytes, "activations"); }
  [[nodiscard]] std::size_t size() const noexcept override { return memory_.size(); }
  [[nodiscard]] float* data() const noexcept override { return memory_.as<float>(); }

 private:
  GpuContextPtr context_;
  GpuMemory memory_;
};

class GpuStore final : public LayerStore {
 public:
  explicit GpuStore(GpuContextPtr context) : context_(std::move(context)) {}
  [[nodiscard]] std::size_t element_bytes() const noexcept override {
    return context_->element_bytes();
  }
  [[nodiscard]] Precision rounds_to() const noexcept override { return Precision::fp32; }
  [[nodiscard]] std::unique_ptr<StoredMemory> memory() override {
    return std::make_unique<GpuStoredMemory>(context_);
  }
  void copy(const float* from, float* to, std::int64_t elements) override {
    Gpu& gpu = context_->gpu();
    gpu.check(gpu.api().copy(to, from, static_cast<std::size_t>(elements) * element_bytes(),
                             gpu.stream().native()),
              "copying activations");
  }
  void add(const float* a, const float* b, float* out, float scale,
           std::int64_t elements) override {
    context_->with_format([&]<typename T>(T) {
      const kernels::BasicAddScaled<T> sum{as_stored<T>(a), as_stored<T>(b), as_stored<T>(out),
                                           scale};
      context_->gpu().each(elements, sum, "adding activations");
    });
  }
  void clear(std::span<float> values) override { context_->gpu().clear(values); }

 private:
  GpuContextPtr context_;
};

class GpuFactory final : public LayerFactory {
 public:
  GpuFactory(const ModelOptions& options, Gpu& gpu)
      : options_(options), context_(std::make_shared<GpuContext>(gpu, options.precision)) {}

  Made linear(std::string name, SampleShape input, std::int64_t outputs,
              Activation activation) override {
    return make_gpu_linear(context_, std::move(name), input, outputs, activation);
  }
  Made flatten(std::string name, SampleShape input) override {
    return make_gpu_flatten(context_, std::move(name), input);
  }
  Made conv2d(std::string name, SampleShape input, const ConvShape& shape, Activation activation,
              ReluMask mask) override {
    return make_gpu_conv2d(context_, std::move(name), input, shape, activation, mask);
  }
  Made norm(std::string name, SampleShape input, const NormSetup& setup) override {
    return make_gpu_norm(context_, std::move(name), input, setup);
  }
  Made max_pool(std::string name, SampleShape input, bool after_relu) override {
    return make_gpu_max_pool(context_, std::move(name), input, after_relu);
  }
  Made window_max_pool(std::string name, SampleShape input, std::int64_t kernel,
                       std::int64_t stride, std::int64_t padding) override {
    return make_gpu_window_max_pool(context_, std::move(name), input, kernel, stride, padding);
  }
  Made global_average(std::string name, SampleShape input) override {
    return make_gpu_global_average(context_, std::move(name), input);
  }
  std::shared_ptr<LayerStore> store() override { return std::make_shared<GpuStore>(context_); }
  std::unique_ptr<Model> finish(std::string name, std::vector<Made> layers) override {
    return std::make_unique<GpuSequential>(std::move(name), std::move(layers), context_, options_);
  }

 private:
  ModelOptions options_;
  GpuContextPtr context_;
};

}  // namespace

std::unique_ptr<LayerFactory> make_gpu_factory(const ModelOptions& options, Gpu& gpu) {
  return std::make_unique<GpuFactory>(options, gpu);
}

std::unique_ptr<Model> make_gpu_model(std::string_view name, SampleShape input, int classes,
                                      const ModelOptions& options, Gpu& gpu) {
  const ModelOptions own = checked_options(name, input, classes, options);
  if (name == "logistic") {
    throw ConfigError(fmt::format("model = {} needs device = cpu", name));
  }
  if (name == "gpt") {
    return make_gpu_gpt(std::make_shared<GpuContext>(gpu, own.precision), input.elements(), classes,
                        own);
  }
  GpuFactory factory(own, gpu);
  return build_model(name, input, classes, own, factory);
}

}  // namespace paceline
