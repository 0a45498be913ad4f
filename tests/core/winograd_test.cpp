// SPDX-License-Identifier: Apache-2.0
// Winograd's convolutions: against their equations in double and central differences of those,
// against oneDNN's direct ones where that takes too long, and who is computed by them.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/core/cpu/cpu_factory.h"
#include "common/core/cpu/winograd.h"
#include "tests/core/inputs.h"
#include "tests/core/layer_check.h"
#include "tests/core/reference.h"

namespace paceline {
namespace {

using test::Tensor;

struct WinogradCase {
  SampleShape in;
  std::int64_t outputs;
  std::int64_t padding;
  bool bias;
  Activation activation;
  std::int64_t samples;

  [[nodiscard]] ConvShape conv() const { return {outputs, 3, 1, padding, bias}; }
};

class WinogradGradient : public testing::TestWithParam<WinogradCase> {};

TEST_P(WinogradGradient, MatchesCentralDifferences) {
  const WinogradCase& p = GetParam();
  ASSERT_TRUE(winograd::computes(p.in, p.conv()));
  const auto layer = make_winograd_conv2d(make_dnnl_context(), "conv", p.in, p.conv(), p.activation,
                                          ReluMask::here);
  const reference::Windows windows{p.in, 3, 1, p.padding};
  EXPECT_EQ(layer->output_shape(), (SampleShape{windows.rows(), windows.columns(), p.outputs}));
  const auto x = test::values(1, static_cast<std::size_t>(p.samples * p.in.elements()));
  test::check_layer(*layer, p.samples, x, [&](const Tensor& input, auto w) {
    Tensor y = reference::window_conv2d(input, windows, p.outputs, w);
    const auto outputs = static_cast<std::size_t>(p.outputs);
    for (std::size_t i = 0; i < y.size() && p.bias; ++i) {
      y[i] += w[w.size() - outputs + i % outputs];
    }
    return p.activation == Activation::relu ? reference::relu(y) : y;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, WinogradGradient,
    testing::Values(WinogradCase{{4, 4, 16}, 16, 1, false, Activation::none, 1},
                    WinogradCase{{5, 3, 16}, 16, 1, true, Activation::relu, 1},
                    WinogradCase{{3, 4, 32}, 16, 0, true, Activation::none, 1},
                    WinogradCase{{2, 3, 16}, 16, 2, false, Activation::none, 1},
                    WinogradCase{{1, 1, 16}, 16, 1, true, Activation::none, 3}));

double largest_relative(const std::vector<float>& got, const std::vector<float>& wanted) {
  return test::relative_error(got, std::vector<double>(wanted.begin(), wanted.end()));
}

struct Passed {
  std::vector<float> y, dx, dw;
};

Passed pass_through(Layer& layer, std::int64_t samples, const std::vector<float>& x,
                    const std::vector<float>& w, const std::vector<float>& r) {
  Passed out{std::vector<float>(r.size()), std::vector<float>(x.size()),
             std::vector<float>(w.size())};
  std::vector<float> dy = r;
  layer.forward({samples, x.data(), out.y.data(), w.data()});
  layer.backward(
      {samples, x.data(), out.y.data(), dy.data(), out.dx.data(), w.data(), out.dw.data()});
  return out;
}

/// Several blocks of tiles with a remainder, and channels of either block's size. Without ReLU: an
/// output whose sign is a matter of rounding would pass its gradient on in one of both alone.
class WinogradBesideDirect : public testing::TestWithParam<WinogradCase> {};

TEST_P(WinogradBesideDirect, AgreesOnManyTiles) {
  const WinogradCase& p = GetParam();
  const auto context = make_dnnl_context();
  const auto own =
      make_winograd_conv2d(context, "own", p.in, p.conv(), p.activation, ReluMask::here);
  const auto direct = make_conv2d(context, "direct", p.in, p.conv(), p.activation, ReluMask::here);
  const auto x = test::values(1, static_cast<std::size_t>(p.samples * p.in.elements()));
  const auto w = test::values(2, test::parameter_count(*own), 0.1F);
  const auto r =
      test::values(3, static_cast<std::size_t>(p.samples * own->output_shape().elements()));
  const Passed a = pass_through(*own, p.samples, x, w, r);
  const Passed b = pass_through(*direct, p.samples, x, w, r);
  EXPECT_LE(largest_relative(a.y, b.y), 1e-5);
  EXPECT_LE(largest_relative(a.dx, b.dx), 1e-5);
  EXPECT_LE(largest_relative(a.dw, b.dw), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, WinogradBesideDirect,
    testing::Values(WinogradCase{{32, 32, 16}, 16, 1, false, Activation::none, 3},
                    WinogradCase{{13, 11, 48}, 64, 1, true, Activation::none, 5},
                    WinogradCase{{15, 9, 32}, 80, 0, true, Activation::none, 4},
                    WinogradCase{{7, 7, 144}, 128, 1, false, Activation::none, 9}));

/// Equal bits whoever computes a sample are what makes runs of several workers comparable.
TEST(Winograd, ASampleDoesNotDependOnItsBatch) {
  const SampleShape in{7, 5, 16};
  const auto layer = make_winograd_conv2d(make_dnnl_context(), "conv", in, {16, 3, 1, 1, true},
                                          Activation::none, ReluMask::here);
  const std::int64_t samples = 9;
  const auto x = test::values(1, static_cast<std::size_t>(samples * in.elements()));
  const auto w = test::values(2, test::parameter_count(*layer));
  const Passed all = pass_through(*layer, samples, x, w, x);
  const auto each = static_cast<std::size_t>(in.elements());
  for (std::size_t s = 0; s < static_cast<std::size_t>(samples); ++s) {
    const auto part = [&](const std::vector<float>& v) {
      return std::vector<float>(v.begin() + static_cast<std::ptrdiff_t>(s * each),
                                v.begin() + static_cast<std::ptrdiff_t>((s + 1) * each));
    };
    const Passed one = pass_through(*layer, 1, part(x), w, part(x));
    EXPECT_EQ(one.y, part(all.y)) << "sample " << s;
    EXPECT_EQ(one.dx, part(all.dx)) << "sample " << s;
  }
}

TEST(Winograd, ComputesSmallWindowsOfWholeVectors) {
  const SampleShape in{8, 8, 16};
  EXPECT_TRUE(winograd::computes(in, {32, 3, 1, 0, true}));
  EXPECT_FALSE(winograd::computes(in, {32, 3, 2, 1, true}));
  EXPECT_FALSE(winograd::computes(in, {32, 1, 1, 0, true}));
  EXPECT_FALSE(winograd::computes(in, {32, 3, 1, 3, true}));
  EXPECT_FALSE(winograd::computes(in, {24, 3, 1, 1, true}));
  EXPECT_FALSE(winograd::computes({8, 8, 3}, {32, 3, 1, 1, true}));
}

std::vector<std::string> chosen(const ModelOptions& options) {
  const SampleShape in{6, 6, 16};
  CpuFactory factory(options);
  const auto layer =
      factory.conv2d("conv", in, {16, 3, 1, 1, false}, Activation::none, ReluMask::here);
  const std::vector<float> x(static_cast<std::size_t>(in.elements()));
  const std::vector<float> w(test::parameter_count(*layer));
  std::vector<float> y(x.size());
  layer->forward({1, x.data(), y.data(), w.data()});
  return layer->implementations();
}

TEST(Winograd, IsTheFactorysChoiceUnlessTurnedOffOrThreaded) {
  const std::vector<std::string> own{"winograd"};
  EXPECT_EQ(chosen({}) == own, prefers_winograd({6, 6, 16}, {16, 3, 1, 1, false}));
  ModelOptions off;
  off.winograd = false;
  EXPECT_NE(chosen(off), own);
  ModelOptions threaded;
  threaded.threads = 2;
  EXPECT_NE(chosen(threaded), own);
}

}  // namespace
}  // namespace paceline
