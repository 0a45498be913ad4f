// SPDX-License-Identifier: Apache-2.0
// What the CUDA module computes, on a real GPU against the CPU. Without a GPU every case is
// skipped.
#include <gtest/gtest.h>

#include <limits>

#include "common/base/error.h"
#include "common/core/kernels_windows.h"
#include "common/core/optimizer.h"
#include "tests/core/inputs.h"
#include "tests/core/layerwise_on_gpu.h"
#include "tests/core/on_gpu.h"

namespace paceline {
namespace {

using test::Cuda;
using test::OnDevice;

TEST_F(Cuda, CopiesThereAndBack) {
  const auto values = test::values(1, 1'000'003);
  EXPECT_EQ(OnDevice<float>(values, gpu()).values(), values);
}

TEST_F(Cuda, OutOfMemoryNamesBytes) {
  constexpr std::size_t kTooMuch = std::size_t{1} << 50;
  try {
    const GpuMemory memory(gpu(), kTooMuch, "the weights");
    FAIL() << "there cannot be that much memory";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the weights wants 1125899906842624 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("are free"), std::string::npos) << text;
  }
  EXPECT_EQ(OnDevice<float>({1.0F, 2.0F}, gpu()).values(), (std::vector<float>{1.0F, 2.0F}));
}

void run_optimizer(const OptimizerSpec& spec, std::size_t n, Gpu& gpu) {
  Optimizer optimizer(spec, n);
  std::vector<float> expected = test::values(1, n);
  const OnDevice<float> weights(expected, gpu);
  const OnDevice<float> moment1(std::vector<float>(n), gpu);
  const OnDevice<float> moment2(std::vector<float>(n), gpu);
  for (int step = 0; step < 20; ++step) {
    const auto gradient = test::values(10 + static_cast<std::uint64_t>(step), n, 100.0F);
    const UpdateInfo info{step, 0.05F, 1.0F / 7.0F};
    optimizer.apply(0, expected, expected, gradient, info);
    const OnDevice<float> device_gradient(gradient, gpu);
    const kernels::UpdateOperands operands{weights.get(), weights.get(), device_gradient.get(),
                                           moment1.get(), moment2.get()};
    gpu.check(gpu.api().update(&spec, &info, &operands, static_cast<std::int64_t>(n),
                               gpu.stream().native()),
              "update");
    gpu.stream().synchronize();
  }
  EXPECT_EQ(weights.values(), expected) << n << " elements: the rules round once per operation";
}

TEST_F(Cuda, OptimizersGiveTheBitsOfTheCpu) {
  for (const OptimizerSpec& spec :
       {OptimizerSpec{}, OptimizerSpec{.momentum = 0.9F, .weight_decay = 1e-3F},
        OptimizerSpec{.nesterov = true, .momentum = 0.9F, .weight_decay = 1e-3F},
        OptimizerSpec{.kind = OptimizerKind::adam, .weight_decay = 1e-3F}}) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{255}, std::size_t{100'003}}) {
      run_optimizer(spec, n, gpu());
    }
  }
}

TEST_F(Cuda, LarsAndLambAreTheCpus) {
  test::expect_same_layerwise(gpu(), 1e-5);
}

TEST_F(Cuda, NothingToDoIsNoError) {
  const OptimizerSpec spec;
  const UpdateInfo info;
  const kernels::UpdateOperands none{};
  gpu().check(gpu().api().update(&spec, &info, &none, 0, gpu().stream().native()), "update");
  const kernels::SoftmaxCrossEntropy softmax{};
  gpu().rows(0, softmax, "softmax");
  gpu().stream().synchronize();
}

TEST_F(Cuda, SoftmaxCrossEntropyInPlace) {
  for (const std::size_t classes : {std::size_t{1}, std::size_t{10}, std::size_t{1000}}) {
    const std::size_t rows = 1031;
    const auto logits = test::values(1, rows * classes, 8.0F);
    const auto labels = test::labels(2, rows, static_cast<int>(classes));
    std::vector<float> gradient = logits;
    std::vector<float> loss(rows);
    std::vector<std::uint8_t> correct(rows);
    const OnDevice<float> device_logits(logits, gpu());
    const OnDevice<std::int32_t> device_labels(labels, gpu());
    const OnDevice<float> device_loss(loss, gpu());
    const OnDevice<std::uint8_t> device_correct(correct, gpu());
    const auto count = static_cast<std::int64_t>(rows);
    const auto width = static_cast<std::int64_t>(classes);
    kernels::for_rows(count,
                      kernels::SoftmaxCrossEntropy{gradient.data(), labels.data(), gradient.data(),
                                                   loss.data(), correct.data(), width});
    const kernels::SoftmaxCrossEntropy functor{device_logits.get(),  device_labels.get(),
                                               device_logits.get(),  device_loss.get(),
                                               device_correct.get(), width};
    gpu().rows(count, functor, "softmax_cross_entropy");
    gpu().stream().synchronize();
    EXPECT_LE(test::relative_error(device_logits.values(), test::widen(gradient)), 1e-5);
    EXPECT_LE(test::relative_error(device_loss.values(), test::widen(loss)), 1e-5);
    EXPECT_EQ(device_correct.values(), correct);
  }
}

TEST_F(Cuda, MaxPoolGivesTheBitsOfTheCpu) {
  const kernels::PoolGeometry in{5, 7, 33};
  const std::size_t samples = 19;
  const std::size_t inputs = samples * 5 * 7 * 33;
  const std::size_t outputs = samples * 2 * 3 * 33;
  const auto rows = static_cast<std::int64_t>(samples * 2);
  const auto x = test::values(1, inputs);
  const auto dy = test::values(2, outputs);
  std::vector<float> y(outputs);
  std::vector<std::uint8_t> winner(outputs);
  std::vector<float> dx(inputs, std::numeric_limits<float>::quiet_NaN());
  const OnDevice<float> device_x(x, gpu());
  const OnDevice<float> device_y(y, gpu());
  const OnDevice<std::uint8_t> device_winner(winner, gpu());
  const OnDevice<float> device_dy(dy, gpu());
  const OnDevice<float> device_dx(dx, gpu());
  kernels::for_rows(rows, kernels::MaxPoolForward{x.data(), y.data(), winner.data(), in});
  kernels::for_rows(
      rows, kernels::MaxPoolBackward{y.data(), winner.data(), dy.data(), dx.data(), in, true});
  const kernels::WindowMax<float> forward{
      device_x.get(), device_y.get(), device_winner.get(), {5, 7, 33, 2, 3, 2, 2, 0}};
  const kernels::MaxPoolSpread<float> backward{
      device_y.get(), device_winner.get(), device_dy.get(), device_dx.get(), in, true};
  gpu().each(forward.units(samples), forward, "max_pool_forward");
  gpu().each(backward.units(samples), backward, "max_pool_backward");
  gpu().stream().synchronize();
  EXPECT_EQ(device_y.values(), y);
  EXPECT_EQ(device_winner.values(), winner);
  EXPECT_EQ(device_dx.values(), dx);
}

TEST_F(Cuda, BiasGradientGivesTheBitsOfTheCpu) {
  for (const std::size_t columns : {std::size_t{1}, std::size_t{64}, std::size_t{1000}}) {
    const std::size_t rows = 300;
    const auto y = test::values(1, rows * columns);
    std::vector<float> dy = test::values(2, rows * columns);
    std::vector<float> bias(columns);
    const OnDevice<float> device_y(y, gpu());
    const OnDevice<float> device_dy(dy, gpu());
    const OnDevice<float> device_bias(bias, gpu());
    const auto height = static_cast<std::int64_t>(rows);
    const auto width = static_cast<std::int64_t>(columns);
    kernels::for_column_tiles(
        width, kernels::BiasGradient{y.data(), dy.data(), bias.data(), height, width});
    const kernels::BiasGradient functor{device_y.get(), device_dy.get(), device_bias.get(), height,
                                        width};
    gpu().rows((width + kernels::kColumnTile - 1) / kernels::kColumnTile, functor, "bias_gradient");
    gpu().stream().synchronize();
    EXPECT_EQ(device_dy.values(), dy);
    EXPECT_EQ(device_bias.values(), bias);
  }
}

}  // namespace
}  // namespace paceline
