// SPDX-License-Identifier: Apache-2.0
// Convolutions of any stride and padding, pooling over overlapping windows and over all positions,
// and ResNet's blocks, against their equations in double and central differences of those.
#include <gtest/gtest.h>

#include <functional>

#include "common/base/error.h"
#include "common/core/cpu/cpu_factory.h"
#include "common/core/cpu/norm.h"
#include "common/core/kernels_pool.h"
#include "common/core/residual.h"
#include "tests/core/inputs.h"
#include "tests/core/layer_check.h"
#include "tests/core/reference.h"
#include "tests/core/thread_lanes.h"

namespace paceline {
namespace {

using test::Tensor;

struct WindowCase {
  SampleShape in;
  ConvShape conv;  ///< outputs and bias play no part in pooling
  std::int64_t samples;
};

reference::Windows windows_of(const WindowCase& p) {
  return {p.in, p.conv.kernel, p.conv.stride, p.conv.padding};
}

std::vector<float> inputs_of(const WindowCase& p) {
  return test::values(1, static_cast<std::size_t>(p.samples * p.in.elements()));
}

class WindowConv : public testing::TestWithParam<WindowCase> {};

TEST_P(WindowConv, MatchesCentralDifferences) {
  const WindowCase& p = GetParam();
  const auto layer =
      make_conv2d(make_dnnl_context(), "conv", p.in, p.conv, Activation::none, ReluMask::here);
  const reference::Windows windows = windows_of(p);
  EXPECT_EQ(layer->output_shape(),
            (SampleShape{windows.rows(), windows.columns(), p.conv.outputs}));
  test::check_layer(*layer, p.samples, inputs_of(p), [&](const Tensor& x, auto w) {
    Tensor y = reference::window_conv2d(x, windows, p.conv.outputs, w);
    for (std::size_t i = 0; i < y.size() && p.conv.bias; ++i) {
      const auto outputs = static_cast<std::size_t>(p.conv.outputs);
      y[i] += w[w.size() - outputs + i % outputs];
    }
    return y;
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, WindowConv,
                         testing::Values(WindowCase{{5, 6, 3}, {4, 3, 1, 1, false}, 2},
                                         WindowCase{{6, 5, 4}, {8, 3, 2, 1, false}, 2},
                                         WindowCase{{6, 7, 4}, {5, 1, 2, 0, false}, 2},
                                         WindowCase{{4, 4, 16}, {8, 1, 1, 0, false}, 2},
                                         WindowCase{{9, 8, 3}, {2, 7, 2, 3, false}, 1},
                                         WindowCase{{4, 3, 2}, {3, 2, 1, 1, true}, 2},
                                         WindowCase{{1, 1, 2}, {3, 3, 1, 1, true}, 3}));

TEST(WindowConv, RefusesAKernelThatDoesNotFit) {
  EXPECT_THROW(make_conv2d(make_dnnl_context(), "c", {4, 9, 1}, ConvShape{1, 7, 1, 1, false},
                           Activation::none, ReluMask::here),
               ConfigError);
}

class WindowMax : public testing::TestWithParam<WindowCase> {};

TEST_P(WindowMax, MatchesCentralDifferences) {
  const WindowCase& p = GetParam();
  const auto layer =
      make_window_max_pool("pool", p.in, p.conv.kernel, p.conv.stride, p.conv.padding);
  test::check_layer(*layer, p.samples, inputs_of(p),
                    [&](const Tensor& x, auto) { return reference::window_max(x, windows_of(p)); });
}

INSTANTIATE_TEST_SUITE_P(Shapes, WindowMax,
                         testing::Values(WindowCase{{6, 7, 5}, {1, 3, 2, 1}, 3},
                                         WindowCase{{5, 5, 2}, {1, 3, 1, 1}, 2},
                                         WindowCase{{7, 4, 17}, {1, 2, 2, 0}, 2},
                                         WindowCase{{7, 7, 3}, {1, 2, 3, 0}, 2},
                                         WindowCase{{1, 1, 3}, {1, 3, 2, 1}, 2}));

TEST(WindowMax, GivesTheGradientToTheFirstOfEqualMaxima) {
  const auto layer = make_window_max_pool("pool", {1, 4, 1}, 1, 1, 0);
  EXPECT_EQ(layer->output_shape(), (SampleShape{1, 4, 1}));
  const auto wide = make_window_max_pool("pool", {3, 3, 1}, 3, 2, 1);
  const std::vector<float> x(9, 2.0F);
  std::vector<float> y(4);
  std::vector<float> dy{1.0F, 10.0F, 100.0F, 1000.0F};
  std::vector<float> dx(9);
  wide->forward({1, x.data(), y.data(), nullptr});
  wide->backward({1, x.data(), y.data(), dy.data(), dx.data(), nullptr, nullptr});
  EXPECT_EQ(dx, (std::vector<float>{1.0F, 10.0F, 0.0F, 100.0F, 1000.0F, 0.0F, 0.0F, 0.0F, 0.0F}));
}

TEST(WindowMax, RefusesWindowsThatDoNotFit) {
  EXPECT_THROW(make_window_max_pool("p", {2, 8, 1}, 3, 1, 0), ConfigError);
  EXPECT_THROW(make_window_max_pool("p", {8, 8, 1}, 3, 1, 2), ConfigError);
  EXPECT_THROW(make_window_max_pool("p", {32, 32, 1}, 16, 1, 0), ConfigError);
}

TEST(GlobalAverage, MatchesCentralDifferences) {
  const SampleShape in{3, 4, 5};
  const auto layer = make_global_average("avg", in);
  test::check_layer(*layer, 2, test::values(1, 120), [&](const Tensor& x, auto) {
    Tensor y(10);
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i / 60 * 5 + i % 5] += x[i] / 12.0;
    }
    return y;
  });
}

/// The functors under a team of lanes, as on a GPU.
TEST(PoolKernels, TeamOfLanesMatchesOne) {
  const kernels::WindowGeometry g{5, 6, 11, 3, 3, 3, 2, 1};
  const auto x = test::values(1, 2 * 5 * 6 * 11);
  const auto dy = test::values(2, 2 * 9 * 11);
  std::vector<float> y(dy.size());
  std::vector<float> team_y(dy.size());
  std::vector<std::uint8_t> winner(dy.size());
  std::vector<std::uint8_t> team_winner(dy.size());
  kernels::for_rows(6, kernels::WindowMaxForward{x.data(), y.data(), winner.data(), g});
  test::for_rows_by_lanes(
      6, kernels::WindowMaxForward{x.data(), team_y.data(), team_winner.data(), g});
  EXPECT_EQ(team_y, y);
  EXPECT_EQ(team_winner, winner);
  std::vector<float> dx(x.size());
  std::vector<float> team_dx(x.size());
  kernels::for_rows(10, kernels::WindowMaxBackward{winner.data(), dy.data(), dx.data(), g});
  test::for_rows_by_lanes(10,
                          kernels::WindowMaxBackward{winner.data(), dy.data(), team_dx.data(), g});
  EXPECT_EQ(team_dx, dx);
  std::vector<float> mean(22);
  std::vector<float> team_mean(22);
  kernels::for_rows(2, kernels::AverageForward{x.data(), mean.data(), 30, 11});
  test::for_rows_by_lanes(2, kernels::AverageForward{x.data(), team_mean.data(), 30, 11});
  EXPECT_EQ(team_mean, mean);
}

struct BlockCase {
  SampleShape in;
  std::int64_t outputs;
  std::int64_t stride;
  NormKind kind;
};

std::unique_ptr<Layer> make_block(const BlockCase& p) {
  const auto context = make_dnnl_context();
  std::vector<std::unique_ptr<Layer>> branch;
  std::vector<std::unique_ptr<Layer>> shortcut;
  const auto add = [&](auto& to, const char* name, SampleShape in, const ConvShape& shape,
                       Activation activation) {
    to.push_back(make_conv2d(context, name, in, shape, Activation::none, ReluMask::here));
    NormSetup setup;
    setup.kind = p.kind;
    setup.activation = activation;
    to.push_back(make_norm(std::string(name) + "_norm", to.back()->output_shape(), setup));
  };
  add(branch, "conv1", p.in, {p.outputs, 3, p.stride, 1, false}, Activation::relu);
  add(branch, "conv2", branch.back()->output_shape(), {p.outputs, 3, 1, 1, false},
      Activation::relu);
  if (p.stride != 1 || p.outputs != p.in.channels) {
    add(shortcut, "shortcut", p.in, {p.outputs, 1, p.stride, 0, false}, Activation::none);
  }
  return make_resnet_block("block", std::move(branch), std::move(shortcut),
                           make_cpu_store(Precision::fp32));
}

/// Convolution and norm with parameters from the front of `w`, which moves on.
Tensor normed_conv(const Tensor& x, const reference::Windows& windows, std::int64_t outputs,
                   NormKind kind, std::span<const double>& w) {
  const auto take = [&](std::int64_t count) {
    const auto part = w.first(static_cast<std::size_t>(count));
    w = w.subspan(part.size());
    return part;
  };
  const std::int64_t weights = outputs * windows.in.channels * windows.kernel * windows.kernel;
  const Tensor y = reference::window_conv2d(x, windows, outputs, take(weights));
  const auto same = [&](std::int64_t sample, std::int64_t channel) {
    return kind == NormKind::batch ? channel : sample;
  };
  return reference::norm(y, {windows.rows(), windows.columns(), outputs}, take(2 * outputs), same);
}

class Block : public testing::TestWithParam<BlockCase> {};

TEST_P(Block, MatchesCentralDifferences) {
  const BlockCase& p = GetParam();
  const std::int64_t samples = 3;
  const auto layer = make_block(p);
  const auto x = test::values(1, static_cast<std::size_t>(samples * p.in.elements()));
  test::check_layer(*layer, samples, x, [&](const Tensor& input, std::span<const double> w) {
    const reference::Windows first{p.in, 3, p.stride, 1};
    const SampleShape middle{first.rows(), first.columns(), p.outputs};
    const Tensor y = reference::relu(normed_conv(input, first, p.outputs, p.kind, w));
    Tensor sum = normed_conv(y, {middle, 3, 1, 1}, p.outputs, p.kind, w);
    const Tensor beside =
        w.empty() ? input : normed_conv(input, {p.in, 1, p.stride, 0}, p.outputs, p.kind, w);
    std::transform(sum.begin(), sum.end(), beside.begin(), sum.begin(), std::plus<>());
    return reference::relu(sum);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Block,
                         testing::Values(BlockCase{{3, 4, 3}, 3, 1, NormKind::batch},
                                         BlockCase{{4, 5, 2}, 4, 2, NormKind::batch},
                                         BlockCase{{3, 3, 2}, 3, 1, NormKind::layer}));

TEST(Block, NamesItsTensorsByLayer) {
  const auto layer = make_block({{4, 4, 2}, 4, 2, NormKind::batch});
  std::vector<std::string> names;
  for (const ParameterSpec& spec : layer->parameters()) {
    names.push_back(spec.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"conv1.weight", "conv1_norm.gamma", "conv1_norm.beta",
                                             "conv2.weight", "conv2_norm.gamma", "conv2_norm.beta",
                                             "shortcut.weight", "shortcut_norm.gamma",
                                             "shortcut_norm.beta"}));
}

TEST(Block, RefusesAShortcutOfAnotherShape) {
  const auto context = make_dnnl_context();
  std::vector<std::unique_ptr<Layer>> branch;
  branch.push_back(make_conv2d(context, "conv1", {4, 4, 2}, ConvShape{3, 3, 1, 1, false},
                               Activation::none, ReluMask::here));
  branch.push_back(make_norm("n", {4, 4, 3}, {.activation = Activation::relu}));
  EXPECT_THROW(make_resnet_block("block", std::move(branch), {}, make_cpu_store(Precision::fp32)),
               Error);
}

}  // namespace
}  // namespace paceline
