// SPDX-License-Identifier: Apache-2.0
// The norms against their equation in double and against PyTorch (make_golden.py), and what they do
// with running statistics.
#include "common/core/cpu/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/base/error.h"
#include "tests/core/golden.h"
#include "tests/core/inputs.h"
#include "tests/core/layer_check.h"
#include "tests/core/reference.h"

namespace paceline {
namespace {

using test::Tensor;

struct NormCase {
  NormKind kind;
  SampleShape in;
  std::int64_t samples;
  std::int64_t groups = 1;
  Activation activation = Activation::none;
  float offset = 0.0F;  ///< of the inputs: their mean
};

std::unique_ptr<Layer> make(const NormCase& p) {
  NormSetup setup;
  setup.kind = p.kind;
  setup.groups = p.groups;
  setup.activation = p.activation;
  return make_norm("norm", p.in, setup);
}

class NormGradient : public testing::TestWithParam<NormCase> {};

TEST_P(NormGradient, MatchesCentralDifferences) {
  const NormCase& p = GetParam();
  const auto layer = make(p);
  auto x = test::values(1, static_cast<std::size_t>(p.samples * p.in.elements()));
  for (float& value : x) {
    value += p.offset;
  }
  const bool over_samples = p.kind == NormKind::batch || p.kind == NormKind::sync_batch;
  const std::int64_t groups = p.kind == NormKind::layer ? 1 : p.groups;
  const auto same = [&](std::int64_t sample, std::int64_t channel) {
    return over_samples ? channel : sample * groups + channel / (p.in.channels / groups);
  };
  test::check_layer(*layer, p.samples, x, [&](const Tensor& input, std::span<const double> w) {
    const Tensor y = reference::norm(input, p.in, w, same);
    return p.activation == Activation::relu ? reference::relu(y) : y;
  });
}

constexpr Activation kRelu = Activation::relu;
INSTANTIATE_TEST_SUITE_P(Shapes, NormGradient,
                         testing::Values(NormCase{NormKind::batch, {1, 1, 7}, 5},
                                         NormCase{NormKind::batch, {1, 1, 1}, 3},
                                         NormCase{NormKind::batch, {3, 4, 6}, 3, 1, kRelu},
                                         NormCase{NormKind::batch, {12, 12, 3}, 2, 1, kRelu, 20.0F},
                                         NormCase{NormKind::batch, {2, 1, 70}, 3},
                                         NormCase{NormKind::sync_batch, {3, 4, 6}, 3, 1, kRelu},
                                         NormCase{NormKind::group, {3, 4, 6}, 3, 2, kRelu},
                                         NormCase{NormKind::group, {1, 1, 12}, 4, 3},
                                         NormCase{NormKind::group, {12, 12, 4}, 1, 4, kRelu},
                                         NormCase{
                                             NormKind::group, {2, 2, 130}, 2, 13, kRelu, -3.0F},
                                         NormCase{NormKind::layer, {1, 1, 9}, 6},
                                         NormCase{NormKind::layer, {1, 1, 3}, 1},
                                         NormCase{NormKind::layer, {3, 5, 4}, 2, 1, kRelu, 5.0F}));

TEST(Norm, ReluMaskAboveEqualsHere) {
  const SampleShape in{4, 4, 6};
  const auto x = test::values(1, 3 * 96);
  const auto w = test::values(2, 12);
  const auto gradients = [&](ReluMask mask) {
    NormSetup setup;
    setup.activation = Activation::relu;
    setup.mask = mask;
    const auto layer = make_norm("n", in, setup);
    std::vector<float> y(x.size());
    std::vector<float> dx(x.size());
    std::vector<float> dw(12);
    std::vector<float> buffers(12);
    std::vector<float> dy = test::values(3, x.size());
    layer->forward({3, x.data(), y.data(), w.data(), buffers.data()});
    for (std::size_t i = 0; i < dy.size() && mask == ReluMask::above; ++i) {
      dy[i] = y[i] > 0.0F ? dy[i] : 0.0F;
    }
    layer->backward({3, x.data(), y.data(), dy.data(), dx.data(), w.data(), dw.data()});
    dx.insert(dx.end(), dw.begin(), dw.end());
    return dx;
  };
  EXPECT_EQ(gradients(ReluMask::above), gradients(ReluMask::here));
}

/// Two training batches and an evaluation, the values moved from PyTorch's channels-first order.
class GoldenNorm : public testing::TestWithParam<std::pair<const char*, NormCase>> {};

TEST_P(GoldenNorm, MatchesPyTorch) {
  const auto& [name, p] = GetParam();
  const auto golden = test::read_golden("norms");
  const auto expect = [&, prefix = std::string(name)](const std::vector<float>& actual,
                                                      const std::string& what) {
    EXPECT_LE(test::relative_error(actual, golden.at(prefix + "." + what)), 1e-5) << what;
  };
  const auto layer = make(p);
  const auto n = static_cast<std::size_t>(p.samples * p.in.elements());
  const auto w = test::values(21, 2 * static_cast<std::size_t>(p.in.channels));
  std::vector<float> buffers(layer->buffer_elements());
  layer->initialise_buffers(buffers);
  std::vector<float> y(n);
  std::vector<float> dx(n);
  std::vector<float> dw(w.size());
  for (const std::uint64_t batch : {22U, 23U}) {
    const auto x = test::values(batch, n, 2.0F);
    std::vector<float> dy = test::values(24, n);
    layer->forward({p.samples, x.data(), y.data(), w.data(), buffers.data()});
    layer->backward({p.samples, x.data(), y.data(), dy.data(), dx.data(), w.data(), dw.data()});
  }
  expect(y, "y");
  expect(dx, "dx");
  expect(dw, "dw");
  if (!buffers.empty()) {
    expect(buffers, "buffers");
  }
  const std::vector<float> before = buffers;
  const auto x = test::values(25, n, 2.0F);
  layer->forward({p.samples, x.data(), y.data(), w.data(), buffers.data(), false});
  expect(y, "evaluation");
  EXPECT_EQ(buffers, before);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, GoldenNorm,
    testing::Values(std::pair{"batch", NormCase{NormKind::batch, {3, 2, 4}, 5}},
                    std::pair{"batch_vector", NormCase{NormKind::batch, {1, 1, 6}, 4}},
                    std::pair{"group", NormCase{NormKind::group, {3, 2, 4}, 3, 2}},
                    std::pair{"layer_image", NormCase{NormKind::layer, {3, 2, 4}, 3}},
                    std::pair{"layer_vector", NormCase{NormKind::layer, {1, 1, 6}, 4}}),
    [](const auto& tested) { return std::string(tested.param.first); });

TEST(BatchNorm, ABatchOfOneIsItsOwnMeanAndKeepsTheRunningVariance) {
  NormSetup setup;
  setup.momentum = 0.25;
  const auto layer = make_norm("n", {1, 1, 3}, setup);
  std::vector<float> buffers(6);
  layer->initialise_buffers(buffers);
  const std::vector<float> x{4.0F, -8.0F, 1.0F};
  const std::vector<float> w{1.0F, 2.0F, 3.0F, 0.5F, 0.25F, -1.0F};
  std::vector<float> y(3);
  std::vector<float> dx(3, NAN);
  std::vector<float> dw(6, NAN);
  std::vector<float> dy{1.0F, 2.0F, 3.0F};
  layer->forward({1, x.data(), y.data(), w.data(), buffers.data()});
  layer->backward({1, x.data(), y.data(), dy.data(), dx.data(), w.data(), dw.data()});
  EXPECT_EQ(y, (std::vector<float>{0.5F, 0.25F, -1.0F}));
  EXPECT_EQ(buffers, (std::vector<float>{1.0F, -2.0F, 0.25F, 1.0F, 1.0F, 1.0F}));
  EXPECT_EQ(dx, (std::vector<float>(3, 0.0F)));
  EXPECT_EQ(dw, (std::vector<float>{0.0F, 0.0F, 0.0F, 1.0F, 2.0F, 3.0F}));
}

TEST(GroupNorm, RefusesGroupsThatDoNotDivideTheChannels) {
  NormSetup setup;
  setup.kind = NormKind::group;
  setup.groups = 5;
  try {
    static_cast<void>(make_norm("conv1_norm", {3, 3, 32}, setup));
    FAIL() << "was accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "norm.groups = 5 does not divide the 32 channels of layer conv1_norm");
  }
}

}  // namespace
}  // namespace paceline
