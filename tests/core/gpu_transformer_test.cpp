// SPDX-License-Identifier: Apache-2.0
// The GPU's transformer, run by the double of the CUDA module, against the CPU's, which is held to
// PyTorch and to central differences.
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/core/gpu/gpu_attention.h"
#include "common/core/gpu/gpu_model.h"
#include "common/core/kernels_sequence.h"
#include "common/core/kernels_transformer.h"
#include "tests/core/thread_lanes.h"
#include "tests/core/transformer_on_gpu.h"
#include "tests/support/host_math.h"
#include "tests/support/host_module.h"

namespace paceline {
namespace {

const CudaModule& transformer_host() {
  static const CudaModule module(test::host_module());
  return module;
}

constexpr double kOnTheHost = 1e-5;

TEST(GpuTransformer, LayersAreTheCpus) {
  for (const Precision format : test::kStoredFormats) {
    Gpu gpu(transformer_host(), {});
    test::expect_same_blocks(gpu, format, kOnTheHost);
    test::expect_same_row_norm(gpu, format, kOnTheHost);
  }
}

TEST(GpuTransformer, LayersAreTheCpusWithoutFusedAttentionToo) {
  for (const Precision format : {Precision::bf16, Precision::fp16}) {
    Gpu gpu(transformer_host(), {.attention = Fusing::never});
    test::expect_same_blocks(gpu, format, kOnTheHost);
  }
}

constexpr TransformerShape kFusedShape{7, 16, 2, 256};

TEST(GpuTransformer, FusedAttentionKeepsNoShares) {
  const auto planned = [](bool fused) {
    Gpu gpu(transformer_host(), {.attention = fused ? Fusing::ordered : Fusing::never});
    const auto block = make_gpu_transformer_block(
        std::make_shared<GpuContext>(gpu, Precision::bf16), "block", kFusedShape);
    const PlannedBatch batch{100, 2};
    return std::pair(block->planned_bytes(batch), block->planned_scratch(batch)[2]);
  };
  const auto [kept, scratch] = planned(true);
  const auto [kept_apart, scratch_apart] = planned(false);
  constexpr std::size_t kShares = 100 * 2 * 7;
  constexpr std::size_t kUnaligned = 256;
  EXPECT_NEAR(static_cast<double>(kept_apart - kept), 2.0 * kShares * 7 - 4.0 * kShares,
              kUnaligned);
  EXPECT_NEAR(static_cast<double>(scratch_apart - scratch),
              2.0 * kShares * 7 + 2.0 * 100 * 7 * 4 * 16, 3 * kUnaligned);
}

TEST(GpuTransformer, WhyAttentionIsNotFusedCanBeAsked) {
  const auto obstacle = [](Precision format, const TransformerShape& shape, bool allowed) {
    Gpu gpu(transformer_host(), {.attention = allowed ? Fusing::ordered : Fusing::never});
    return GpuAttention(std::make_shared<GpuContext>(gpu, format), shape).obstacle(2, true);
  };
  EXPECT_EQ(obstacle(Precision::bf16, kFusedShape, true), "");
  EXPECT_EQ(obstacle(Precision::bf16, kFusedShape, false), "cuda.attention = products");
  EXPECT_EQ(obstacle(Precision::fp32, kFusedShape, true), "attention is fused in bf16 and fp16");
  EXPECT_EQ(obstacle(Precision::fp16, {5, 12, 3, 256}, true),
            "the double fuses heads of multiples of 8 channels");
}

/// As when cuDNN has a kernel for one batch, but not for the next.
TEST(GpuTransformer, ABlockWhoseBatchCannotBeFusedGoesOnWithProducts) {
  Gpu gpu(transformer_host(), {});
  const auto block = make_transformer_block(make_transformer_scratch(), "block", kFusedShape);
  const auto on_gpu = make_gpu_transformer_block(std::make_shared<GpuContext>(gpu, Precision::bf16),
                                                 "block", kFusedShape);
  const auto check = [&](std::int64_t samples) {
    test::expect_same_layer(*block, *on_gpu, gpu, Precision::bf16, samples, 1e-2);
    return on_gpu->held_bytes();
  };
  const std::size_t fused = check(30);
  test::refuse_host_samples(30);
  const std::size_t with_shares = check(30);
  EXPECT_GT(with_shares, fused);
  test::refuse_host_samples(0);
  EXPECT_EQ(check(30), with_shares);
}

/// The double's attention against central differences, and where every position sees all.
TEST(HostAttention, GradientIsTheDifferenceOfOutputs) {
  for (const std::int32_t causal : {0, 1}) {
    const cuda::Attention shape{Precision::fp32, causal, 2, 2, 5, 3, 0.7F, 1};
    constexpr std::size_t kOutputs = 2 * 2 * 5 * 3;
    std::vector<float> qkv = test::values(1, 3 * kOutputs);
    const std::vector<float> d_out = test::values(2, kOutputs);
    std::vector<float> out(kOutputs);
    std::vector<float> statistics(2 * 2 * 5);
    std::vector<float> d_qkv(qkv.size());
    test::host_attention(shape, qkv.data(), out.data(), statistics.data());
    test::host_attention_gradient(shape, qkv.data(), out.data(), statistics.data(), d_out.data(),
                                  d_qkv.data());
    const auto loss_with = [&](std::size_t i, float change) {
      std::vector<float> changed = qkv;
      changed[i] += change;
      std::vector<float> rows(statistics.size());
      test::host_attention(shape, changed.data(), out.data(), rows.data());
      double sum = 0.0;
      for (std::size_t j = 0; j < kOutputs; ++j) {
        sum += static_cast<double>(out[j]) * static_cast<double>(d_out[j]);
      }
      return sum;
    };
    std::vector<double> differences;
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      constexpr float kStep = 1.0F / 128;
      differences.push_back((loss_with(i, kStep) - loss_with(i, -kStep)) / (2.0 / 128));
    }
    EXPECT_LE(test::relative_error(d_qkv, differences), 1e-4) << causal;
  }
}

TEST(GpuGpt, LossAndGradientsAreTheCpus) {
  for (const Precision format : test::kStoredFormats) {
    for (const bool fused : {true, false}) {
      Gpu gpu(transformer_host(), {.attention = fused ? Fusing::ordered : Fusing::never});
      test::expect_same_gpt(gpu, format, kOnTheHost);
    }
  }
}

/// bf16 has every other number beyond 256, every fourth beyond 512.
TEST(GpuGpt, TokensBeyondSixteenBitsAreExact) {
  Gpu gpu(transformer_host(), {});
  for (const Precision format : test::kStoredFormats) {
    test::expect_same_gpt(gpu, format, kOnTheHost, 1000);
  }
}

TEST(GpuGpt, TakesTheMemoryThatItPlans) {
  const test::Text text;
  for (const Precision format : test::kStoredFormats) {
    Gpu gpu(transformer_host(), {});
    const auto model =
        make_gpu_model("gpt", {test::kGptContext, 1, 1}, 256, test::gpt_options(format), gpu);
    const std::size_t planned =
        model->plan_activations({test::kGptSamples, stored_bytes(format)}).total();
    const auto weights = gpu.allocate(model->parameter_elements(), "weights");
    const auto gradients = gpu.allocate(model->parameter_elements(), "gradients");
    for (int step = 0; step < 2; ++step) {
      model->train_batch(text.all(), weights->values(), gradients->values(), nullptr);
      static_cast<void>(model->take_result());
    }
    gpu.stream().synchronize();
    const auto held = static_cast<double>(model->activation_bytes() - model->unplanned_bytes());
    EXPECT_NEAR(static_cast<double>(planned), held, 0.03 * held) << precision_name(format);
  }
}

TEST(GpuGpt, EqualStepsGiveEqualBits) {
  const test::Text text;
  const auto cpu = make_gpt(test::kGptContext, 256, test::gpt_options(Precision::fp32));
  std::vector<float> weights(cpu->parameter_elements());
  cpu->initialise(weights, 7);
  Gpu gpu(transformer_host(), {});
  const test::Trained first = test::train_on_gpu(gpu, Precision::bf16, weights, text.all());
  const test::Trained second = test::train_on_gpu(gpu, Precision::bf16, weights, text.all());
  EXPECT_EQ(first.gradients, second.gradients);
  EXPECT_EQ(first.result.loss_sum, second.result.loss_sum);
}

TEST(GpuGpt, HasTheParametersAndTheWorkOfTheCpus) {
  Gpu gpu(transformer_host(), {});
  const auto cpu = make_gpt(test::kGptContext, 256, test::gpt_options(Precision::fp32));
  const auto on_gpu = make_gpu_gpt(std::make_shared<GpuContext>(gpu, Precision::fp32),
                                   test::kGptContext, 256, test::gpt_options(Precision::fp32));
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
    ModelOptions options = test::gpt_options(format);
    options.gpt.heads = heads;
    return make_gpu_gpt(std::make_shared<GpuContext>(gpu, format), 8, tokens, options);
  };
  EXPECT_THROW(static_cast<void>(make(Precision::fp32, 256, 3)), ConfigError);
  EXPECT_THROW(static_cast<void>(make(Precision::bf16, (1 << 24) + 1, 2)), ConfigError);
  EXPECT_NO_THROW(static_cast<void>(make(Precision::bf16, 258, 2)));
}

/// A GPU's lanes at once give what one after the other do.
TEST(SequenceKernels, LanesAgreeWithOneLane) {
  constexpr std::int64_t kNormRows = 9;
  constexpr std::int64_t kNormColumns = 21;
  constexpr std::int64_t kVocabulary = 5;
  const auto n = static_cast<std::size_t>(kNormRows * kNormColumns);
  const std::vector<float> x = test::values(1, n);
  const std::vector<float> dy = test::values(2, n);
  const std::vector<float> gamma = test::values(3, 2 * kNormColumns);
  std::vector<float> y(n);
  std::vector<float> by_lanes(n);
  std::vector<float> mean(kNormRows);
  std::vector<float> inverse(kNormRows);
  const auto norm = [&](std::vector<float>& to) {
    return kernels::RowNorm{x.data(),    gamma.data(), gamma.data() + kNormColumns,
                            to.data(),   mean.data(),  inverse.data(),
                            kNormColumns};
  };
  kernels::for_rows(kNormRows, norm(y));
  test::for_rows_by_lanes(kNormRows, norm(by_lanes));
  EXPECT_LE(test::relative_error(by_lanes, test::widen(y)), 1e-6);

  const auto gradient = [&](std::vector<float>& to) {
    return kernels::RowNormGradient{x.data(),       dy.data(), gamma.data(), mean.data(),
                                    inverse.data(), dy.data(), to.data(),    kNormColumns};
  };
  kernels::for_rows(kNormRows, gradient(y));
  test::for_rows_by_lanes(kNormRows, gradient(by_lanes));
  EXPECT_LE(test::relative_error(by_lanes, test::widen(y)), 1e-6);

  std::vector<float> tokens;
  for (const std::int32_t token : test::labels(4, kNormRows, kVocabulary)) {
    tokens.push_back(static_cast<float>(token));
  }
  std::vector<float> sums(kVocabulary * kNormColumns);
  std::vector<float> sums_by_lanes(sums.size());
  const std::vector<float> head = test::values(5, sums.size());
  const auto scatter = [&](std::vector<float>& to) {
    return kernels::TokenGradient<float>{tokens.data(), dy.data(),   head.data(), to.data(),
                                         kNormRows,     kVocabulary, kNormColumns};
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
  const kernels::SplitHeads<float> split{together.data(), apart.data(), layout};
  kernels::for_each(split.units(), split);
  // Value (part 2) of sample 1, position 2, head 3, column 4, on either side.
  EXPECT_EQ(apart[(((2 * 2 + 1) * 4 + 3) * 3 + 2) * 5 + 4],
            together[(((1 * 3 + 2) * 3 + 2) * 4 + 3) * 5 + 4]);
  const kernels::JoinHeads<float> join{apart.data(), back.data(), layout};
  kernels::for_each(join.units(), join);
  EXPECT_EQ(back, together);
}

}  // namespace
}  // namespace paceline
