// SPDX-License-Identifier: Apache-2.0
// The transformer on a real GPU against the CPU's. Without a GPU every case is skipped.
#include "tests/core/on_gpu.h"
#include "tests/core/transformer_on_gpu.h"

namespace paceline {
namespace {

using test::Cuda;

constexpr double kOnTheGpu = 1e-4;

TEST_F(Cuda, TransformerLayersAreTheCpus) {
  for (const Precision format : test::kStoredFormats) {
    test::expect_same_blocks(gpu(), format, kOnTheGpu);
    test::expect_same_row_norm(gpu(), format, kOnTheGpu);
  }
}

TEST_F(Cuda, GptIsTheCpus) {
  for (const Precision format : test::kStoredFormats) {
    test::expect_same_gpt(gpu(), format, kOnTheGpu);
  }
}

TEST_F(Cuda, EqualGptStepsGiveEqualBits) {
  const test::Text text;
  const auto cpu = make_gpt(test::kGptContext, 256, test::gpt_options(Precision::fp32));
  std::vector<float> weights(cpu->parameter_elements());
  cpu->initialise(weights, 7);
  for (const Precision format : test::kStoredFormats) {
    const test::Trained first = test::train_on_gpu(gpu(), format, weights, text.all());
    const test::Trained second = test::train_on_gpu(gpu(), format, weights, text.all());
    EXPECT_EQ(first.gradients, second.gradients) << precision_name(format);
    EXPECT_EQ(first.result.loss_sum, second.result.loss_sum) << precision_name(format);
  }
}

}  // namespace
}  // namespace paceline
