// SPDX-License-Identifier: Apache-2.0
// The GPU's transformer, run by the double of the CUDA module, against the CPU's, which is held to
// PyTorch and to central differences.
#include <gtest/gtest.h>

#include <cstring>

#include "common/base/error.h"
#include "common/base/half.h"
#include "common/core/cpu/transformer.h"
#include "common/core/gpt.h"
#include "common/core/gpu/gpu_transformer.h"
#include "common/core/kernels_sequence.h"
#include "common/core/kernels_transformer.h"
#include "tests/core/inputs.h"
#include "tests/core/thread_lanes.h"
#include "tests/support/host_module.h"

namespace paceline {
namespace {

constexpr Precision kStoredFormats[] = {Precision::fp32, Precision::bf16, Precision::fp16};

const CudaModule& transformer_host() {
  static const CudaModule module(test::host_module());
  return module;
}

double most_apart(Precision format) {
  return format == Precision::fp32 ? 1e-5 : 1e-2;
}

/// A tensor on the device in a format.
class StoredTensor {
 public:
  StoredTensor(Gpu& gpu, Precision format, const std::vector<float>& values)
      : gpu_(gpu), format_(format), elements_(values.size()) {
    memory_ = GpuMemory(gpu, elements_ * stored_bytes(format), "a test");
    std::vector<std::byte> bytes(memory_.size());
    with_stored(format, [&]<typename T>(T) {
      for (std::size_t i = 0; i < elements_; ++i) {
        const T stored(values[i]);
        std::memcpy(bytes.data() + i * sizeof(T), &stored, sizeof(T));
      }
    });
    gpu.check(
        gpu.api().copy_to_device(memory_.as(), bytes.data(), bytes.size(), gpu.stream().native()),
        "uploading");
    gpu.stream().synchronize();
  }
  [[nodiscard]] float* get() const { return memory_.as<float>(); }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<std::byte> bytes(memory_.size());
    gpu_.check(
        gpu_.api().copy_to_host(bytes.data(), memory_.as(), bytes.size(), gpu_.stream().native()),
        "downloading");
    gpu_.stream().synchronize();
    std::vector<float> out(elements_);
    with_stored(format_, [&]<typename T>(T) {
      for (std::size_t i = 0; i < elements_; ++i) {
        T stored;
        std::memcpy(&stored, bytes.data() + i * sizeof(T), sizeof(T));
        out[i] = static_cast<float>(stored);
      }
    });
    return out;
  }

 private:
  Gpu& gpu_;
  Precision format_;
  std::size_t elements_;
  GpuMemory memory_;
};

std::size_t parameter_elements_of(const Layer& layer) {
  std::size_t count = 0;
  for (const ParameterSpec& spec : layer.parameters()) {
    count += spec.elements();
  }
  return count;
}

/// Both layers forward and backward from the same values; weights about as large as they begin.
void expect_same_layer(Layer& cpu, Layer& gpu_layer, Gpu& gpu, Precision format,
                       std::int64_t samples) {
  const auto count = static_cast<std::size_t>(samples * cpu.input_shape().elements());
  std::vector<float> x = test::values(1, count);
  std::vector<float> dy = test::values(2, count);
  round_values(format, x);
  round_values(format, dy);
  std::vector<float> weights = test::values(3, parameter_elements_of(cpu), 0.3F);
  std::vector<float> y(count);
  std::vector<float> dx(count);
  std::vector<float> gradients(weights.size());
  const StoredTensor device_x(gpu, format, x);
  const StoredTensor device_dy(gpu, format, dy);
  const StoredTensor device_weights(gpu, Precision::fp32, weights);
  const StoredTensor device_y(gpu, format, y);
  const StoredTensor device_dx(gpu, format, dx);
  const StoredTensor device_gradients(gpu, Precision::fp32, gradients);
  cpu.forward({samples, x.data(), y.data(), weights.data()});
  cpu.backward(
      {samples, x.data(), y.data(), dy.data(), dx.data(), weights.data(), gradients.data()});
  gpu_layer.forward({samples, device_x.get(), device_y.get(), device_weights.get()});
  gpu_layer.backward({samples, device_x.get(), device_y.get(), device_dy.get(), device_dx.get(),
                      device_weights.get(), device_gradients.get()});
  const double most = most_apart(format);
  const std::string_view name = precision_name(format);
  EXPECT_LE(test::relative_error(device_y.values(), test::widen(y)), most) << name;
  EXPECT_LE(test::relative_error(device_dx.values(), test::widen(dx)), most) << name;
  const std::vector<float> computed = device_gradients.values();
  std::size_t begin = 0;
  for (const ParameterSpec& spec : cpu.parameters()) {
    const auto part = std::span(computed).subspan(begin, spec.elements());
    const auto expected = std::span(gradients).subspan(begin, spec.elements());
    EXPECT_LE(test::relative_error(part, test::widen(expected)), most) << name << " " << spec.name;
    begin += spec.elements();
  }
}

TEST(GpuTransformer, BlockIsTheCpus) {
  for (const TransformerShape& shape :
       {TransformerShape{7, 16, 2, 256}, TransformerShape{5, 12, 3, 256}}) {
    for (const Precision format : kStoredFormats) {
      Gpu gpu(transformer_host(), {});
      const auto block = make_transformer_block(make_transformer_scratch(), "block", shape);
      const auto on_gpu =
          make_gpu_transformer_block(std::make_shared<GpuContext>(gpu, format), "block", shape);
      for (const std::int64_t samples : {2, 3, 1}) {  // grows, then holds less than it could
        expect_same_layer(*block, *on_gpu, gpu, format, samples);
      }
    }
  }
}

TEST(GpuTransformer, RowNormIsTheCpus) {
  const TransformerShape shape{40, 48, 1, 256};
  for (const Precision format : kStoredFormats) {
    Gpu gpu(transformer_host(), {});
    const auto norm = make_row_norm("norm", shape);
    const auto on_gpu = make_gpu_row_norm(std::make_shared<GpuContext>(gpu, format), "norm", shape);
    expect_same_layer(*norm, *on_gpu, gpu, format, 3);
  }
}

constexpr std::int64_t kGptContext = 8;
constexpr std::int64_t kGptSamples = 5;

ModelOptions gpt_options(Precision precision) {
  ModelOptions options;
  options.gpt = {2, 2, 16};
  options.precision = precision;
  return options;
}

struct Text {
  std::vector<float> tokens;
  std::vector<std::int32_t> labels = test::labels(13, kGptSamples* kGptContext, 256);
  Text() {
    for (const std::int32_t token : test::labels(11, kGptSamples * kGptContext, 256)) {
      tokens.push_back(static_cast<float>(token % 40 + 216));  // with many repeats
    }
  }
  [[nodiscard]] Batch all() const { return {tokens, labels, kGptSamples}; }
};

struct Trained {
  BatchResult result;
  std::vector<float> gradients;
};

Trained train_on_gpu(Gpu& gpu, Precision format, std::span<const float> weights,
                     const Batch& batch) {
  const auto model = make_gpu_gpt(std::make_shared<GpuContext>(gpu, format), kGptContext, 256,
                                  gpt_options(format));
  const auto device_weights = gpu.allocate(weights.size(), "weights");
  const auto device_gradients = gpu.allocate(weights.size(), "gradients");
  gpu.upload(weights, device_weights->values());
  model->train_batch(batch, device_weights->values(), device_gradients->values(), nullptr);
  Trained trained{model->take_result(), std::vector<float>(weights.size())};
  gpu.download(device_gradients->values(), trained.gradients);
  EXPECT_NEAR(model->evaluate_batch(batch, device_weights->values()).loss_sum,
              trained.result.loss_sum, 1e-6 * trained.result.loss_sum);
  const PlannedBatch planned{batch.samples, stored_bytes(format)};
  EXPECT_GE(model->activation_bytes(), model->plan_activations(planned).outputs);
  return trained;
}

TEST(GpuGpt, LossAndGradientsAreTheCpus) {
  const auto cpu = make_gpt(kGptContext, 256, gpt_options(Precision::fp32));
  const Text text;
  std::vector<float> weights(cpu->parameter_elements());
  std::vector<float> gradients(weights.size());
  cpu->initialise(weights, 7);
  const BatchResult expected = cpu->train_batch(text.all(), weights, gradients, nullptr);
  for (const Precision format : kStoredFormats) {
    Gpu gpu(transformer_host(), {});
    const Trained trained = train_on_gpu(gpu, format, weights, text.all());
    // Some thirty roundings lie between a weight and the loss: of 2^-9 each in bf16, 2^-12 in fp16.
    const double most = format == Precision::bf16 ? 2e-2 : most_apart(format) / 4;
    EXPECT_NEAR(trained.result.loss_sum, expected.loss_sum, most * expected.loss_sum);
    for (const Parameter& p : cpu->parameters()) {
      const auto part = std::span(trained.gradients).subspan(p.range.begin, p.range.size());
      const auto wanted = std::span(gradients).subspan(p.range.begin, p.range.size());
      EXPECT_LE(test::relative_error(part, test::widen(wanted)), most)
          << precision_name(format) << " " << p.name;
    }
  }
}

TEST(GpuGpt, EqualStepsGiveEqualBits) {
  const Text text;
  const auto cpu = make_gpt(kGptContext, 256, gpt_options(Precision::fp32));
  std::vector<float> weights(cpu->parameter_elements());
  cpu->initialise(weights, 7);
  Gpu gpu(transformer_host(), {});
  const Trained first = train_on_gpu(gpu, Precision::bf16, weights, text.all());
  const Trained second = train_on_gpu(gpu, Precision::bf16, weights, text.all());
  EXPECT_EQ(first.gradients, second.gradients);
  EXPECT_EQ(first.result.loss_sum, second.result.loss_sum);
}

TEST(GpuGpt, HasTheParametersAndTheWorkOfTheCpus) {
  Gpu gpu(transformer_host(), {});
  const auto cpu = make_gpt(kGptContext, 256, gpt_options(Precision::fp32));
  const auto on_gpu = make_gpu_gpt(std::make_shared<GpuContext>(gpu, Precision::fp32), kGptContext,
                                   256, gpt_options(Precision::fp32));
  ASSERT_EQ(on_gpu->parameters().size(), cpu->parameters().size());
  for (std::size_t i = 0; i < cpu->parameters().size(); ++i) {
    EXPECT_EQ(on_gpu->parameters()[i].name, cpu->parameters()[i].name);
    EXPECT_EQ(on_gpu->parameters()[i].range.begin, cpu->parameters()[i].range.begin);
  }
  ASSERT_EQ(on_gpu->layers(), cpu->layers());
  for (int l = 0; l < cpu->layers(); ++l) {
    EXPECT_EQ(on_gpu->layer_flops(l), cpu->layer_flops(l)) << l;
  }
  std::vector<float> first(cpu->parameter_elements());
  std::vector<float> second(first.size());
  cpu->initialise(first, 3);
  on_gpu->initialise(second, 3);
  EXPECT_EQ(first, second);
}

TEST(GpuGpt, RefusesWhatCannotBe) {
  Gpu gpu(transformer_host(), {});
  const auto make = [&](Precision format, int tokens, std::int64_t heads) {
    ModelOptions options = gpt_options(format);
    options.gpt.heads = heads;
    return make_gpu_gpt(std::make_shared<GpuContext>(gpu, format), 8, tokens, options);
  };
  EXPECT_THROW(static_cast<void>(make(Precision::fp32, 256, 3)), ConfigError);
  EXPECT_THROW(static_cast<void>(make(Precision::bf16, 258, 2)), ConfigError);
  EXPECT_NO_THROW(static_cast<void>(make(Precision::fp32, 258, 2)));
  EXPECT_NO_THROW(static_cast<void>(make(Precision::bf16, 257, 2)));
}

/// A GPU's lanes at once give what one after the other do.
TEST(SequenceKernels, LanesAgreeWithOneLane) {
  constexpr std::int64_t kRows = 9;
  constexpr std::int64_t kColumns = 21;
  constexpr std::int64_t kVocabulary = 5;
  const auto n = static_cast<std::size_t>(kRows * kColumns);
  const std::vector<float> x = test::values(1, n);
  const std::vector<float> dy = test::values(2, n);
  const std::vector<float> gamma = test::values(3, 2 * kColumns);
  std::vector<float> y(n);
  std::vector<float> by_lanes(n);
  std::vector<float> mean(kRows);
  std::vector<float> inverse(kRows);
  const auto norm = [&](std::vector<float>& to) {
    return kernels::RowNorm{x.data(),  gamma.data(), gamma.data() + kColumns,
                            to.data(), mean.data(),  inverse.data(),
                            kColumns};
  };
  kernels::for_rows(kRows, norm(y));
  test::for_rows_by_lanes(kRows, norm(by_lanes));
  EXPECT_LE(test::relative_error(by_lanes, test::widen(y)), 1e-6);

  const auto gradient = [&](std::vector<float>& to) {
    return kernels::RowNormGradient{x.data(),       dy.data(), gamma.data(), mean.data(),
                                    inverse.data(), dy.data(), to.data(),    kColumns};
  };
  kernels::for_rows(kRows, gradient(y));
  test::for_rows_by_lanes(kRows, gradient(by_lanes));
  EXPECT_LE(test::relative_error(by_lanes, test::widen(y)), 1e-6);

  std::vector<float> tokens;
  for (const std::int32_t token : test::labels(4, kRows, kVocabulary)) {
    tokens.push_back(static_cast<float>(token));
  }
  std::vector<float> sums(kVocabulary * kColumns);
  std::vector<float> sums_by_lanes(sums.size());
  const std::vector<float> head = test::values(5, sums.size());
  const auto scatter = [&](std::vector<float>& to) {
    return kernels::TokenGradient<float>{tokens.data(), dy.data(),   head.data(), to.data(),
                                         kRows,         kVocabulary, kColumns};
  };
  kernels::for_rows(kVocabulary * scatter(sums).tiles(), scatter(sums));
  test::for_rows_by_lanes(kVocabulary * scatter(sums).tiles(), scatter(sums_by_lanes));
  EXPECT_EQ(sums_by_lanes, sums) << "each element has one lane";
}

TEST(SequenceKernels, SoftmaxOfManyMatricesByLanes) {
  constexpr std::int64_t kPositions = 11;
  constexpr std::int64_t kMatrices = 3;
  const auto n = static_cast<std::size_t>(kMatrices * kPositions * kPositions);
  std::vector<float> shares = test::values(1, n, 5.0F);
  std::vector<float> by_lanes = shares;
  std::vector<Half> halves;
  for (const float value : shares) {
    halves.emplace_back(value);
  }
  for (std::int64_t m = 0; m < kMatrices; ++m) {
    float* matrix = shares.data() + m * kPositions * kPositions;
    kernels::for_rows(kPositions, kernels::CausalSoftmax{matrix, 0.7F, kPositions});
  }
  const std::int64_t rows = kMatrices * kPositions;
  test::for_rows_by_lanes(rows, kernels::CausalSoftmax{by_lanes.data(), 0.7F, kPositions});
  test::for_rows_by_lanes(rows, kernels::BasicCausalSoftmax<Half>{halves.data(), 0.7F, kPositions});
  EXPECT_LE(test::relative_error(by_lanes, test::widen(shares)), 1e-6);
  std::vector<float> rounded;
  for (const Half half : halves) {
    rounded.push_back(static_cast<float>(half));
  }
  EXPECT_LE(test::relative_error(rounded, test::widen(shares)), 2e-3);

  const std::vector<float> d = test::values(2, n);
  std::vector<float> gradient = d;
  std::vector<float> gradient_by_lanes = d;
  kernels::for_rows(
      rows, kernels::CausalSoftmaxGradient{shares.data(), gradient.data(), 0.7F, kPositions});
  test::for_rows_by_lanes(rows, kernels::CausalSoftmaxGradient{
                                    shares.data(), gradient_by_lanes.data(), 0.7F, kPositions});
  EXPECT_LE(test::relative_error(gradient_by_lanes, test::widen(gradient)), 1e-6);
}

TEST(SequenceKernels, HeadsComeBackTogether) {
  const kernels::HeadLayout layout{2, 3, 3, 4, 5};
  const std::vector<float> together = test::values(1, 2 * 3 * 3 * 4 * 5);
  std::vector<float> apart(together.size());
  std::vector<float> back(together.size());
  kernels::for_each(layout.elements(),
                    kernels::SplitHeads<float>{together.data(), apart.data(), layout});
  // Value (part 2) of sample 1, position 2, head 3, column 4, on either side.
  EXPECT_EQ(apart[(((2 * 2 + 1) * 4 + 3) * 3 + 2) * 5 + 4],
            together[(((1 * 3 + 2) * 3 + 2) * 4 + 3) * 5 + 4]);
  kernels::for_each(layout.elements(),
                    kernels::JoinHeads<float>{apart.data(), back.data(), layout});
  EXPECT_EQ(back, together);
}

}  // namespace
}  // namespace paceline
