// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/cpu_factory.h"

#include <algorithm>

#include "common/base/buffer.h"
#include "common/core/cpu/norm.h"
#include "common/core/kernels.h"

namespace paceline {

namespace {

class CpuMemory final : public StoredMemory {
 public:
  void grow(std::size_t bytes) override { memory_.grow(bytes); }
  [[nodiscard]] std::size_t size() const noexcept override { return memory_.size(); }
  [[nodiscard]] float* data() const noexcept override { return memory_.as<float>().data(); }

 private:
  Buffer memory_;
};

class CpuStore final : public LayerStore {
 public:
  explicit CpuStore(Precision precision) : precision_(precision) {}
  [[nodiscard]] std::size_t element_bytes() const noexcept override { return sizeof(float); }
  [[nodiscard]] Precision rounds_to() const noexcept override { return precision_; }
  [[nodiscard]] std::unique_ptr<StoredMemory> memory() override {
    return std::make_unique<CpuMemory>();
  }
  void copy(const float* from, float* to, std::int64_t elements) override {
    std::copy_n(from, elements, to);
  }
  void add(const float* a, const float* b, float* out, float scale,
           std::int64_t elements) override {
    kernels::for_each(elements, kernels::AddScaled{a, b, out, scale});
  }
  void clear(std::span<float> values) override { std::ranges::fill(values, 0.0F); }

 private:
  Precision precision_;
};

}  // namespace

std::shared_ptr<LayerStore> make_cpu_store(Precision precision) {
  return std::make_shared<CpuStore>(precision);
}

CpuFactory::CpuFactory(const ModelOptions& options)
    : options_(options),
      operands_(native_precision(options.precision) ? options.precision : Precision::fp32),
      context_(make_dnnl_context(operands_)) {}

LayerFactory::Made CpuFactory::linear(std::string name, SampleShape input, std::int64_t outputs,
                                      Activation activation) {
  return make_linear(context_, std::move(name), input, outputs, activation);
}

LayerFactory::Made CpuFactory::flatten(std::string name, SampleShape input) {
  return make_flatten(context_, std::move(name), input);
}

LayerFactory::Made CpuFactory::conv2d(std::string name, SampleShape input, const ConvShape& shape,
                                      Activation activation, ReluMask mask) {
  if (options_.winograd && options_.threads == 1 && operands_ == Precision::fp32 &&
      prefers_winograd(input, shape)) {
    return make_winograd_conv2d(context_, std::move(name), input, shape, activation, mask);
  }
  return make_conv2d(context_, std::move(name), input, shape, activation, mask);
}

LayerFactory::Made CpuFactory::norm(std::string name, SampleShape input, const NormSetup& setup) {
  return make_norm(std::move(name), input, setup);
}

LayerFactory::Made CpuFactory::max_pool(std::string name, SampleShape input, bool after_relu) {
  return make_max_pool(std::move(name), input, after_relu);
}

LayerFactory::Made CpuFactory::window_max_pool(std::string name, SampleShape input,
                                               std::int64_t kernel, std::int64_t stride,
                                               std::int64_t padding) {
  return make_window_max_pool(std::move(name), input, kernel, stride, padding);
}

LayerFactory::Made CpuFactory::global_average(std::string name, SampleShape input) {
  return make_global_average(std::move(name), input);
}

std::shared_ptr<LayerStore> CpuFactory::store() {
  return make_cpu_store(options_.precision);
}

std::unique_ptr<Model> CpuFactory::finish(std::string name, std::vector<Made> layers) {
  return std::make_unique<Sequential>(std::move(name), std::move(layers),
                                      as_shared_scratch(context_), options_);
}

}  // namespace paceline
