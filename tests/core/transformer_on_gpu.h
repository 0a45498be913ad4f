// SPDX-License-Identifier: Apache-2.0
// The transformer on a GPU, a real one or a double, against the CPU's, which is held to PyTorch and
// to central differences.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/core/cpu/transformer.h"
#include "common/core/gpt.h"
#include "common/core/gpu/gpu_transformer.h"
#include "tests/core/inputs.h"
#include "tests/core/stored_values.h"

namespace paceline::test {

inline constexpr Precision kStoredFormats[] = {Precision::fp32, Precision::bf16, Precision::fp16};

/// Both layers forward and backward from the same values; weights about as large as they begin.
inline void expect_same_layer(Layer& cpu, Layer& gpu_layer, Gpu& gpu, Precision format,
                              std::int64_t samples, double most) {
  const auto count = static_cast<std::size_t>(samples * cpu.input_shape().elements());
  std::vector<float> x = values(1, count);
  std::vector<float> dy = values(2, count);
  round_values(format, x);
  round_values(format, dy);
  std::vector<float> weights = values(3, tensors_of(cpu), 0.3F);
  std::vector<float> y(count);
  std::vector<float> dx(count);
  std::vector<float> gradients(weights.size());
  const StoredValues device_x(gpu, x, format);
  const StoredValues device_dy(gpu, dy, format);
  const StoredValues device_weights(gpu, weights, Precision::fp32);
  const StoredValues device_y(gpu, y, format);
  const StoredValues device_dx(gpu, dx, format);
  const StoredValues device_gradients(gpu, gradients, Precision::fp32);
  cpu.forward({samples, x.data(), y.data(), weights.data()});
  cpu.backward(
      {samples, x.data(), y.data(), dy.data(), dx.data(), weights.data(), gradients.data()});
  gpu_layer.forward({samples, device_x.get(), device_y.get(), device_weights.get()});
  gpu_layer.backward({samples, device_x.get(), device_y.get(), device_dy.get(), device_dx.get(),
                      device_weights.get(), device_gradients.get()});
  const std::string_view name = precision_name(format);
  EXPECT_LE(relative_error(device_y.values(), widen(y)), most) << name;
  EXPECT_LE(relative_error(device_dx.values(), widen(dx)), most) << name;
  const std::vector<float> computed = device_gradients.values();
  std::size_t begin = 0;
  for (const ParameterSpec& spec : cpu.parameters()) {
    const auto part = std::span(computed).subspan(begin, spec.elements());
    const auto expected = std::span(gradients).subspan(begin, spec.elements());
    EXPECT_LE(relative_error(part, widen(expected)), most) << name << " " << spec.name;
    begin += spec.elements();
  }
}

/// Blocks of some shapes, for batches that grow and shrink; `fp32` is the bound there. Heads have
/// 8, 4 and 16 channels, of which cuDNN fuses no 4.
inline void expect_same_blocks(Gpu& gpu, Precision format, double fp32) {
  const double most = format == Precision::fp32 ? fp32 : 1e-2;
  for (const TransformerShape& shape :
       {TransformerShape{7, 16, 2, 256}, TransformerShape{5, 12, 3, 256},
        TransformerShape{19, 48, 3, 256}}) {
    const auto block = make_transformer_block(make_transformer_scratch(), "block", shape);
    const auto on_gpu =
        make_gpu_transformer_block(std::make_shared<GpuContext>(gpu, format), "block", shape);
    for (const std::int64_t samples : {2, 3, 1}) {
      expect_same_layer(*block, *on_gpu, gpu, format, samples, most);
    }
  }
}

inline void expect_same_row_norm(Gpu& gpu, Precision format, double fp32) {
  const TransformerShape shape{40, 48, 1, 256};
  const auto norm = make_row_norm("norm", shape);
  const auto on_gpu = make_gpu_row_norm(std::make_shared<GpuContext>(gpu, format), "norm", shape);
  expect_same_layer(*norm, *on_gpu, gpu, format, 3, format == Precision::fp32 ? fp32 : 1e-2);
}

inline constexpr std::int64_t kGptContext = 8;
inline constexpr std::int64_t kGptSamples = 5;

inline ModelOptions gpt_options(Precision precision) {
  ModelOptions options;
  options.gpt = {2, 2, 16};
  options.precision = precision;
  return options;
}

struct Text {
  std::vector<float> tokens;
  std::vector<std::int32_t> labels;
  explicit Text(int vocabulary = 256)
      : labels(test::labels(13, kGptSamples * kGptContext, vocabulary)) {
    for (const std::int32_t token : test::labels(11, kGptSamples * kGptContext, 256)) {
      tokens.push_back(static_cast<float>(token % 40 + vocabulary - 40));  // with many repeats
    }
  }
  [[nodiscard]] Batch all() const { return {tokens, labels, kGptSamples}; }
};

struct Trained {
  BatchResult result;
  std::vector<float> gradients;
};

inline Trained train_on_gpu(Gpu& gpu, Precision format, std::span<const float> weights,
                            const Batch& batch, int vocabulary = 256) {
  const auto model = make_gpu_gpt(std::make_shared<GpuContext>(gpu, format), kGptContext,
                                  vocabulary, gpt_options(format));
  const auto device_weights = gpu.allocate(weights.size(), "weights");
  const auto device_gradients = gpu.allocate(weights.size(), "gradients");
  gpu.upload(weights, device_weights->values());
  model->train_batch(batch, device_weights->values(), device_gradients->values(), nullptr);
  Trained trained{model->take_result(), std::vector<float>(weights.size())};
  gpu.download(device_gradients->values(), trained.gradients);
  EXPECT_NEAR(model->evaluate_batch(batch, device_weights->values()).loss_sum,
              trained.result.loss_sum, 1e-6 * trained.result.loss_sum);
  return trained;
}

/// The whole model's loss and gradients; `fp32` is the bound there.
inline void expect_same_gpt(Gpu& gpu, Precision format, double fp32, int vocabulary = 256) {
  const auto cpu = make_gpt(kGptContext, vocabulary, gpt_options(Precision::fp32));
  const Text text(vocabulary);
  std::vector<float> weights(cpu->parameter_elements());
  std::vector<float> gradients(weights.size());
  cpu->initialise(weights, 7);
  const BatchResult expected = cpu->train_batch(text.all(), weights, gradients, nullptr);
  const Trained trained = train_on_gpu(gpu, format, weights, text.all(), vocabulary);
  // Some thirty roundings lie between a weight and the loss: of 2^-9 each in bf16, 2^-12 in fp16.
  const double most = format == Precision::fp32 ? fp32 : (format == Precision::fp16 ? 3e-3 : 2e-2);
  EXPECT_NEAR(trained.result.loss_sum, expected.loss_sum, most * expected.loss_sum);
  for (const Parameter& p : cpu->parameters()) {
    const auto part = std::span(trained.gradients).subspan(p.range.begin, p.range.size());
    const auto wanted = std::span(gradients).subspan(p.range.begin, p.range.size());
    EXPECT_LE(relative_error(part, widen(wanted)), most) << precision_name(format) << " " << p.name;
  }
}

}  // namespace paceline::test
