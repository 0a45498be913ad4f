// SPDX-License-Identifier: Apache-2.0
// The transformer on a real GPU against the CPU's. Without a GPU every case is skipped.
#include <fmt/format.h>

#include "tests/core/on_gpu.h"
#include "tests/core/transformer_on_gpu.h"
#include "tests/support/host_math.h"

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

/// Both directions on the device, against the double's loops.
void check_attention(const cuda::Attention& a, Gpu& gpu) {
  const auto elements = static_cast<std::size_t>(a.samples * a.positions * a.heads * a.width);
  const auto rows = static_cast<std::size_t>(a.samples * a.positions * a.heads);
  const auto stored = [&](std::uint64_t key, std::size_t count) {
    std::vector<std::uint16_t> bits(count);
    const std::vector<float> values = test::values(key, count);
    a.format == Precision::bf16 ? to_bfloat(values, 1.0F, bits) : to_half(values, 1.0F, bits);
    return bits;
  };
  const auto numbers = [&](const std::vector<std::uint16_t>& bits) {
    std::vector<float> values(bits.size());
    a.format == Precision::bf16 ? from_bfloat(bits, 1.0F, values) : from_half(bits, 1.0F, values);
    return values;
  };
  const std::vector<std::uint16_t> qkv = stored(1, 3 * elements);
  const std::vector<std::uint16_t> d_out = stored(2, elements);
  std::vector<std::uint16_t> out(elements);
  std::vector<std::uint16_t> d_qkv(qkv.size());
  std::vector<float> statistics(rows);
  test::host_attention(a, qkv.data(), out.data(), statistics.data());
  test::host_attention_gradient(a, qkv.data(), out.data(), statistics.data(), d_out.data(),
                                d_qkv.data());

  const test::OnDevice<std::uint16_t> device_qkv(qkv, gpu);
  const test::OnDevice<std::uint16_t> device_d_out(d_out, gpu);
  const test::OnDevice<std::uint16_t> device_out(std::vector<std::uint16_t>(elements), gpu);
  const test::OnDevice<std::uint16_t> device_d_qkv(std::vector<std::uint16_t>(qkv.size()), gpu);
  const test::OnDevice<float> device_statistics(std::vector<float>(rows), gpu);
  const cuda::MathApi& math = gpu.api().math;
  std::vector<std::uint16_t> first;
  for (int call = 0; call < 2; ++call) {
    gpu.check(
        math.attend(gpu.math(), &a, device_qkv.get(), device_out.get(), device_statistics.get()),
        "attention");
    gpu.check(math.attend_gradient(gpu.math(), &a, device_qkv.get(), device_out.get(),
                                   device_statistics.get(), device_d_out.get(), device_d_qkv.get()),
              "attention's gradient");
    const std::vector<std::uint16_t> computed = device_d_qkv.values();
    EXPECT_LE(test::relative_error(numbers(device_out.values()), test::widen(numbers(out))), 1e-2);
    EXPECT_LE(test::relative_error(device_statistics.values(), test::widen(statistics)), 1e-3);
    EXPECT_LE(test::relative_error(numbers(computed), test::widen(numbers(d_qkv))), 1e-2);
    if (call == 0) {
      first = computed;
    }
    if (a.equal_bits != 0) {
      EXPECT_EQ(computed, first);
    }
  }
}

TEST_F(Cuda, FusedAttention) {
  for (cuda::Attention a : {cuda::Attention{Precision::bf16, 1, 2, 3, 160, 64, 0.125F, 0},
                            cuda::Attention{Precision::fp16, 1, 3, 2, 100, 128, 0.08F, 0},
                            cuda::Attention{Precision::bf16, 0, 1, 2, 72, 32, 0.2F, 0},
                            cuda::Attention{Precision::fp16, 0, 2, 1, 128, 64, 0.125F, 0}}) {
    for (const std::int32_t equal_bits : {0, 1}) {
      a.equal_bits = equal_bits;
      SCOPED_TRACE(fmt::format("{} causal {}, {} positions, heads of {}, equal bits {}",
                               precision_name(a.format), a.causal, a.positions, a.width,
                               equal_bits));
      const char* const why = gpu().api().math.attention_obstacle(gpu().math(), &a, 1);
      if (why == nullptr) {
        check_attention(a, gpu());
        continue;
      }
      const std::string text = why;
      if (text.find("too old") != std::string::npos) {
        GTEST_SKIP() << "skipped: " << text;
      }
      EXPECT_TRUE(equal_bits != 0 && text.find("capability 9 only") != std::string::npos) << text;
    }
  }
}

TEST_F(Cuda, TransformerBlocksWithFusedAttentionAndWithout) {
  for (const Fusing fusing : {Fusing::never, Fusing::always}) {
    Gpu other(test::module_under_test(), {.attention = fusing});
    for (const Precision format : {Precision::bf16, Precision::fp16}) {
      test::expect_same_blocks(other, format, kOnTheGpu);
    }
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
