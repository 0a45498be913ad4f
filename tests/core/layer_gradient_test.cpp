// SPDX-License-Identifier: Apache-2.0
// Every layer against its naive double version: the forward directly, the gradients against central
// differences of that version, so that neither the core's forward nor its backward judges itself.
#include <gtest/gtest.h>

#include <limits>

#include "common/base/error.h"
#include "common/core/cpu/layers.h"
#include "tests/core/inputs.h"
#include "tests/core/layer_check.h"
#include "tests/core/reference.h"

namespace paceline {
namespace {

using test::check_layer;
using test::differences;
using test::kTolerance;
using test::parameter_count;
using test::Tensor;

struct LinearCase {
  SampleShape in;
  std::int64_t out;
  Activation activation;
  std::int64_t samples;
};

class LinearGradient : public testing::TestWithParam<LinearCase> {};

TEST_P(LinearGradient, MatchesCentralDifferences) {
  const LinearCase& p = GetParam();
  const auto layer = make_linear(make_dnnl_context(), "fc", p.in, p.out, p.activation);
  const auto x = test::values(1, static_cast<std::size_t>(p.samples * p.in.elements()));
  check_layer(*layer, p.samples, x, [&](const Tensor& input, std::span<const double> w) {
    const Tensor y = reference::linear(input, p.in, p.out, w);
    return p.activation == Activation::relu ? reference::relu(y) : y;
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearGradient,
                         testing::Values(LinearCase{{1, 1, 7}, 5, Activation::none, 3},
                                         LinearCase{{1, 1, 33}, 17, Activation::relu, 6},
                                         LinearCase{{1, 1, 1}, 1, Activation::none, 1},
                                         LinearCase{{6, 5, 1}, 10, Activation::none, 4},
                                         LinearCase{{1, 1, 9}, 130, Activation::relu, 5},
                                         LinearCase{{1, 1, 3}, 4, Activation::relu, 301}));

TEST(Linear, RefusesAnInputInAnotherOrderThanItsWeight) {
  EXPECT_THROW(make_linear(make_dnnl_context(), "fc", {2, 2, 3}, 4, Activation::none), Error);
  EXPECT_NO_THROW(make_linear(make_dnnl_context(), "fc", {2, 2, 1}, 4, Activation::none));
}

class Flatten : public testing::TestWithParam<SampleShape> {};

TEST_P(Flatten, GoesToChannelsFirstAndBack) {
  const SampleShape in = GetParam();
  const std::int64_t samples = 3;
  const auto layer = make_flatten(make_dnnl_context(), "flatten", in);
  EXPECT_EQ(layer->output_shape(), (SampleShape{1, 1, in.elements()}));
  const auto x = test::values(1, static_cast<std::size_t>(samples * in.elements()));
  std::vector<float> y(x.size());
  std::vector<float> dx(x.size());
  layer->forward({samples, x.data(), y.data(), nullptr});
  for (std::int64_t s = 0; s < samples; ++s) {
    for (std::int64_t h = 0; h < in.height; ++h) {
      for (std::int64_t w = 0; w < in.width; ++w) {
        for (std::int64_t c = 0; c < in.channels; ++c) {
          const std::int64_t from = ((s * in.height + h) * in.width + w) * in.channels + c;
          const std::int64_t to = s * in.elements() + (c * in.height + h) * in.width + w;
          ASSERT_EQ(y[static_cast<std::size_t>(to)], x[static_cast<std::size_t>(from)]);
        }
      }
    }
  }
  layer->backward({samples, x.data(), y.data(), y.data(), dx.data(), nullptr, nullptr});
  EXPECT_EQ(dx, x);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Flatten,
                         testing::Values(SampleShape{3, 4, 5}, SampleShape{12, 12, 64},
                                         SampleShape{1, 3, 2}));

struct ConvCase {
  SampleShape in;
  std::int64_t out;
  Activation activation;
  std::int64_t samples;
};

class ConvGradient : public testing::TestWithParam<ConvCase> {};

TEST_P(ConvGradient, MatchesCentralDifferences) {
  const ConvCase& p = GetParam();
  const auto layer =
      make_conv2d(make_dnnl_context(), "conv", p.in, p.out, p.activation, ReluMask::here);
  const auto x = test::values(1, static_cast<std::size_t>(p.samples * p.in.elements()));
  check_layer(*layer, p.samples, x, [&](const Tensor& input, std::span<const double> w) {
    const Tensor y = reference::conv2d(input, p.in, p.out, w);
    return p.activation == Activation::relu ? reference::relu(y) : y;
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvGradient,
                         testing::Values(ConvCase{{6, 6, 1}, 32, Activation::relu, 2},
                                         ConvCase{{6, 6, 1}, 16, Activation::none, 1},
                                         ConvCase{{5, 7, 3}, 4, Activation::none, 3},
                                         ConvCase{{4, 4, 32}, 8, Activation::relu, 2},
                                         ConvCase{{3, 3, 2}, 5, Activation::none, 4}));

struct PoolCase {
  SampleShape in;
  bool after_relu;
};

class PoolGradient : public testing::TestWithParam<PoolCase> {};

TEST_P(PoolGradient, MatchesCentralDifferences) {
  const PoolCase& p = GetParam();
  const std::int64_t samples = 3;
  const auto layer = make_max_pool("pool", p.in, p.after_relu);
  // With after_relu the layer sees ReLU's output and returns the gradient of ReLU's input.
  const auto raw = test::values(1, static_cast<std::size_t>(samples * p.in.elements()));
  const std::vector<float> x = p.after_relu ? reference::relu(raw) : raw;
  const auto outputs = static_cast<std::size_t>(samples * layer->output_shape().elements());
  const std::vector<float> r = test::values(3, outputs);
  std::vector<float> y(outputs);
  std::vector<float> dy = r;
  std::vector<float> dx(x.size(), std::numeric_limits<float>::quiet_NaN());
  layer->forward({samples, x.data(), y.data(), nullptr});
  layer->backward({samples, x.data(), y.data(), dy.data(), dx.data(), nullptr, nullptr});
  Tensor raw64 = test::widen(raw);
  const auto f = [&] {
    return reference::max_pool(p.after_relu ? reference::relu(raw64) : raw64, p.in);
  };
  EXPECT_LE(test::relative_error(y, f()), kTolerance);
  EXPECT_LE(test::relative_error(dx, differences(raw64, test::widen(r), f)), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PoolGradient,
                         testing::Values(PoolCase{{4, 4, 8}, false}, PoolCase{{4, 6, 64}, true},
                                         PoolCase{{5, 7, 3}, false}, PoolCase{{7, 5, 17}, true},
                                         PoolCase{{2, 2, 1}, false}));

TEST(MaxPool, GivesTheGradientToTheFirstOfEqualMaxima) {
  const auto layer = make_max_pool("pool", {2, 2, 1}, false);
  const std::vector<float> x{1.0F, 2.0F, 2.0F, 2.0F};
  float y = 0.0F;
  float dy = 5.0F;
  std::vector<float> dx(4);
  layer->forward({1, x.data(), &y, nullptr});
  layer->backward({1, x.data(), &y, &dy, dx.data(), nullptr, nullptr});
  EXPECT_EQ(dx, (std::vector<float>{0.0F, 5.0F, 0.0F, 0.0F}));
}

/// A ReLU whose mask the pool applies gives the convolution the same gradients as one that masks
/// for itself.
TEST(ReluMask, AboveEqualsHere) {
  const SampleShape in{6, 6, 2};
  const std::int64_t samples = 3;
  const auto x = test::values(1, static_cast<std::size_t>(samples * in.elements()));
  const auto gradients = [&](ReluMask mask) {
    const auto conv = make_conv2d(make_dnnl_context(), "c", in, 16, Activation::relu, mask);
    const auto pool = make_max_pool("p", conv->output_shape(), mask == ReluMask::above);
    const auto w = test::values(2, parameter_count(*conv), 0.5F);
    const auto middle = static_cast<std::size_t>(samples * conv->output_shape().elements());
    const auto outputs = static_cast<std::size_t>(samples * pool->output_shape().elements());
    std::vector<float> y(middle);
    std::vector<float> z(outputs);
    std::vector<float> dy(middle);
    std::vector<float> dz = test::values(3, outputs);
    std::vector<float> result(x.size() + w.size());
    conv->forward({samples, x.data(), y.data(), w.data()});
    pool->forward({samples, y.data(), z.data(), nullptr});
    pool->backward({samples, y.data(), z.data(), dz.data(), dy.data(), nullptr, nullptr});
    conv->backward({samples, x.data(), y.data(), dy.data(), result.data(), w.data(),
                    result.data() + x.size()});
    return result;
  };
  EXPECT_EQ(gradients(ReluMask::above), gradients(ReluMask::here));
}

}  // namespace
}  // namespace paceline
