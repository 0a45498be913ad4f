// SPDX-License-Identifier: Apache-2.0
// Training below fp32: what is rounded where, against double arithmetic on rounded operands, and
// the loss scale.
#include "common/core/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/base/error.h"
#include "common/base/half.h"
#include "common/core/cpu/layers.h"
#include "common/core/loss_scaler.h"
#include "common/core/model.h"
#include "common/core/stored.h"
#include "tests/core/inputs.h"

namespace paceline {
namespace {

/// The nearest number with `bits` significant bits, none below 2^`least`: ties to even.
double nearest(double value, int bits, int least) {
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - bits, least);
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

double nearest(double value, Precision precision) {
  return precision == Precision::fp16 ? nearest(value, 11, -24) : nearest(value, 8, -133);
}

std::vector<double> rounded(std::span<const float> values, Precision precision) {
  std::vector<double> out;
  for (const float value : values) {
    out.push_back(nearest(static_cast<double>(value), precision));
  }
  return out;
}

TEST(Stored, HasTheBitsOfTheHostsConversions) {
  for (std::uint32_t i = 0; i < 1U << 20U; ++i) {
    const auto value = std::bit_cast<float>(i << 12U | (i * 2654435761U >> 20U));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Half(value)))) << i;
      EXPECT_TRUE(std::isnan(static_cast<float>(Bfloat(value)))) << i;
      continue;
    }
    ASSERT_EQ(Half(value).bits, to_half(value)) << value;
    ASSERT_EQ(Bfloat(value).bits, to_bfloat(value)) << value;
  }
  for (std::uint32_t bits = 0; bits < 1U << 16U; ++bits) {
    Half half{};
    half.bits = static_cast<std::uint16_t>(bits);
    if (const float value = from_half(half.bits); !std::isnan(value)) {
      ASSERT_EQ(static_cast<float>(half), value) << bits;
      ASSERT_EQ(Half(value).bits, bits);
      const float between = std::nextafter(value, 0.0F);
      ASSERT_EQ(Half(between).bits, to_half(between)) << "beside a half";
      const float tie = value * (1.0F + 0x1p-11F);
      ASSERT_EQ(Half(tie).bits, to_half(tie)) << "between halves";
    }
  }
}

struct Fixture {
  Fixture(const char* name, Precision precision, std::int64_t n = 5) : samples(n) {
    ModelOptions options;
    options.precision = precision;
    model = make_model(name, {3, 4, 1}, 10, options);
    x = test::values(1, static_cast<std::size_t>(12 * n));
    y = test::labels(2, static_cast<std::size_t>(n), 10);
    weights.resize(model->parameter_elements());
    gradients.resize(weights.size());
    model->initialise(weights, 3);
  }
  BatchResult train(float loss_scale = 1.0F) {
    return model->train_batch({x, y, samples, loss_scale}, weights, gradients, nullptr);
  }
  std::int64_t samples;
  std::unique_ptr<Model> model;
  std::vector<float> x;
  std::vector<std::int32_t> y;
  std::vector<float> weights;
  std::vector<float> gradients;
};

/// Gradients of the softmax model (weight [10, 12], then bias [10]) in double, where everything
/// that meets a layer's boundary is rounded; `loss` gets the summed loss.
std::vector<double> softmax_gradients(const Fixture& f, Precision precision, double loss_scale,
                                      double& loss) {
  const auto x = rounded(f.x, precision);
  const auto w = rounded(f.weights, precision);
  std::vector<double> gradients(130);
  loss = 0.0;
  for (std::size_t s = 0; s < static_cast<std::size_t>(f.samples); ++s) {
    std::vector<double> logits(10);
    double total = 0.0;
    for (std::size_t o = 0; o < 10; ++o) {
      double sum = w[120 + o];
      for (std::size_t i = 0; i < 12; ++i) {
        sum += w[o * 12 + i] * x[s * 12 + i];
      }
      logits[o] = nearest(sum, precision);
      total += std::exp(logits[o]);
    }
    const auto label = static_cast<std::size_t>(f.y[s]);
    loss += std::log(total) - logits[label];
    for (std::size_t o = 0; o < 10; ++o) {
      const double d =
          nearest(loss_scale * (std::exp(logits[o]) / total - (o == label ? 1.0 : 0.0)), precision);
      gradients[120 + o] += d;
      for (std::size_t i = 0; i < 12; ++i) {
        gradients[o * 12 + i] += d * x[s * 12 + i];
      }
    }
  }
  return gradients;
}

class Rounded : public testing::TestWithParam<Precision> {};

TEST_P(Rounded, LinearLayerIsExactArithmeticOnRoundedOperands) {
  for (const float scale : {1.0F, 1024.0F}) {
    Fixture f("softmax", GetParam());
    double loss = 0.0;
    const BatchResult result = f.train(scale);
    const auto expected = softmax_gradients(f, GetParam(), static_cast<double>(scale), loss);
    EXPECT_NEAR(result.loss_sum, loss, 1e-5 * loss) << "the loss is fp32 and not scaled";
    // fp32 sums may fall on the other side of a tie: then the result is one unit off.
    const double unit = GetParam() == Precision::fp16 ? 0x1p-10 : 0x1p-7;
    std::size_t exact = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto actual = static_cast<double>(f.gradients[i]);
      EXPECT_EQ(actual, nearest(actual, GetParam())) << "gradients have the format";
      const double wanted = nearest(expected[i], GetParam());
      EXPECT_NEAR(actual, wanted, unit * std::abs(wanted));
      exact += actual == wanted ? 1 : 0;
    }
    EXPECT_GE(exact, expected.size() * 95 / 100);
    Fixture plain("softmax", Precision::fp32);
    plain.train(scale);
    EXPECT_GT(test::relative_error(f.gradients, test::widen(plain.gradients)), 1e-5);
  }
}

/// All layers' gradients have the format, and are those of fp32 but for rounding.
TEST_P(Rounded, ModelsStayCloseToFp32) {
  for (const char* name : {"mlp", "resmlp"}) {
    Fixture f(name, GetParam(), 16);
    Fixture plain(name, Precision::fp32, 16);
    const double loss = f.train().loss_sum;
    EXPECT_NEAR(loss, plain.train().loss_sum, 0.01 * loss) << name;
    for (const float value : f.gradients) {
      ASSERT_EQ(static_cast<double>(value), nearest(static_cast<double>(value), GetParam()));
    }
    const double error = test::relative_error(f.gradients, test::widen(plain.gradients));
    EXPECT_LE(error, GetParam() == Precision::fp16 ? 0.03 : 0.1) << name;
    EXPECT_GT(error, 1e-5) << name;
  }
}

/// fp32 master weights: an update smaller than the format's unit is not lost.
TEST_P(Rounded, WeightsStayAsTheyAre) {
  Fixture f("mlp", GetParam());
  const std::vector<float> before = f.weights;
  f.train();
  EXPECT_EQ(f.weights, before);
  EXPECT_NE(rounded(f.weights, GetParam()), test::widen(before));
}

TEST_P(Rounded, ScalingTheLossScalesTheGradients) {
  Fixture plain("mlp", GetParam());
  Fixture scaled("mlp", GetParam());
  const double loss = plain.train().loss_sum;
  EXPECT_EQ(scaled.train(256.0F).loss_sum, loss);
  std::vector<double> expected = test::widen(plain.gradients);
  for (double& value : expected) {
    value *= 256.0;
  }
  EXPECT_LE(test::relative_error(scaled.gradients, expected), 5e-3);
}

INSTANTIATE_TEST_SUITE_P(Formats, Rounded, testing::Values(Precision::bf16, Precision::fp16),
                         [](const auto& tested) {
                           return std::string(precision_name(tested.param));
                         });

/// Near 65504, fp16's largest number: a gradient beyond it is infinite, the loss is not.
TEST(Fp16, GradientsBeyondItsRangeOverflowAndTheLossDoesNot) {
  const auto finite = [](const Fixture& f) {
    return std::ranges::all_of(f.gradients, [](float g) { return std::isfinite(g); });
  };
  Fixture f("softmax", Precision::fp16, 1);  // |d_logits| is near 0.9, and so is db
  EXPECT_TRUE(std::isfinite(f.train(65536.0F).loss_sum));
  EXPECT_TRUE(finite(f));
  EXPECT_GT(std::abs(*std::ranges::min_element(f.gradients)), 50000.0F);
  EXPECT_TRUE(std::isfinite(f.train(131072.0F).loss_sum));
  EXPECT_FALSE(finite(f));
  Fixture wide("softmax", Precision::bf16, 1);
  wide.train(131072.0F);
  EXPECT_TRUE(finite(wide));
}

/// oneDNN's bf16 products, where the processor has them, against fp32's on rounded operands.
TEST(Bf16, NativeProductsEqualEmulatedOnes) {
  if (!native_precision(Precision::bf16)) {
    GTEST_SKIP() << "no bf16 arithmetic in this processor";
  }
  const SampleShape image{9, 8, 3};
  const SampleShape vector{1, 1, 216};
  using Make = std::function<std::unique_ptr<Layer>(Precision)>;
  const std::pair<SampleShape, Make> layers[] = {
      {image,
       [&](Precision operands) {
         return make_conv2d(make_dnnl_context(operands), "conv", image, 32, Activation::relu,
                            ReluMask::here);
       }},
      {vector, [&](Precision operands) {
         return make_linear(make_dnnl_context(operands), "fc", vector, 40, Activation::relu);
       }}};
  for (const auto& [shape, make] : layers) {
    auto passes = [&, &in = shape, &maker = make](Precision operands) {
      const auto layer = maker(operands);
      std::size_t parameters = 0;
      for (const ParameterSpec& spec : layer->parameters()) {
        parameters += spec.elements();
      }
      const auto n = static_cast<std::size_t>(6 * in.elements());
      const auto outputs = static_cast<std::size_t>(6 * layer->output_shape().elements());
      auto x = test::values(1, n);
      auto w = test::values(2, parameters, 0.3F);
      auto dy = test::values(3, outputs);
      for (auto* values : {&x, &w, &dy}) {
        round_values(Precision::bf16, *values);
      }
      std::vector<float> y(outputs);
      std::vector<float> dx(n);
      std::vector<float> dw(parameters);
      layer->forward({6, x.data(), y.data(), w.data()});
      layer->backward({6, x.data(), y.data(), dy.data(), dx.data(), w.data(), dw.data()});
      return std::vector{y, dx, dw};
    };
    const auto native = passes(Precision::bf16);
    const auto emulated = passes(Precision::fp32);
    for (std::size_t i = 0; i < native.size(); ++i) {
      EXPECT_LE(test::relative_error(native[i], test::widen(emulated[i])), 1e-5) << i;
    }
  }
}

TEST(Precision, SaysThatItEmulates) {
  EXPECT_EQ(precision_note(Precision::fp32), "");
  EXPECT_NE(precision_note(Precision::fp16).find("precision.compute=fp16"), std::string::npos);
  EXPECT_NE(precision_note(Precision::fp16).find("emulated"), std::string::npos);
  EXPECT_EQ(precision_note(Precision::bf16).empty(), native_precision(Precision::bf16));
  EXPECT_EQ(parse_precision("bf16"), Precision::bf16);
  EXPECT_THROW(static_cast<void>(parse_precision("fp8")), ConfigError);
}

PrecisionConfig dynamic(double initial, std::int64_t growth_every) {
  return {"fp16", "dynamic", initial, growth_every};
}

struct ScalerStep {
  bool previous_skipped;
  float scale_after;
};

void expect_scales(LossScaler scaler, const std::vector<ScalerStep>& table) {
  for (std::size_t step = 0; step < table.size(); ++step) {
    scaler.finish_step(table[step].previous_skipped);
    EXPECT_EQ(scaler.scale(), table[step].scale_after) << "step " << step;
  }
}

TEST(LossScaler, HalvesOncePerScaleThatOverflows) {
  // Steps 0, 1, 2 and 3 overflow: 0 and 1 ran at 1024, 2 and 3 at 512.
  expect_scales(LossScaler(dynamic(1024, 100)),
                {{false, 1024}, {true, 512}, {true, 512}, {true, 256}, {true, 256}, {false, 256}});
}

TEST(LossScaler, DoublesAfterGoodStepsInARow) {
  expect_scales(LossScaler(dynamic(8, 2)), {{false, 8},
                                            {false, 8},
                                            {false, 16},  // steps 0 and 1 were good at 8
                                            {false, 16},  // step 2 ran at 8
                                            {false, 16},  // step 3 is the first at 16
                                            {false, 32},  // steps 3 and 4
                                            {true, 16},   // step 5 ran at 16 and overflowed
                                            {true, 16},   // step 6 ran at 32
                                            {false, 16}});
}

TEST(LossScaler, StaysBetweenOneAndTwoToThe24) {
  LossScaler low(dynamic(2, 1));
  LossScaler high(dynamic(0x1p23, 1));
  for (int step = 0; step < 10; ++step) {
    low.finish_step(step > 0);
    high.finish_step(false);
  }
  EXPECT_EQ(low.scale(), 1.0F);
  EXPECT_EQ(high.scale(), 0x1p24F);
}

TEST(LossScaler, AutoIsDynamicForFp16Only) {
  EXPECT_EQ(LossScaler({"fp16", "auto", 4096.0, 10}).scale(), 4096.0F);
  EXPECT_TRUE(LossScaler({"fp16", "auto", 4096.0, 10}).enabled());
  for (const char* compute : {"fp32", "bf16"}) {
    LossScaler none({compute, "auto", 4096.0, 10});
    EXPECT_EQ(none.scale(), 1.0F);
    EXPECT_FALSE(none.enabled());
  }
  LossScaler fixed({"bf16", "fixed", 4096.0, 1});
  fixed.finish_step(false);
  fixed.finish_step(true);
  EXPECT_EQ(fixed.scale(), 4096.0F);
  EXPECT_TRUE(fixed.enabled());
}

std::string refusal(const Config& config) {
  try {
    check_model_options(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelOptions, RefusesWhatAModelCannotDoByName) {
  const auto expect = [](const std::string& text, auto&& change) {
    Config config;
    change(config);
    EXPECT_NE(refusal(config).find(text), std::string::npos) << refusal(config);
  };
  EXPECT_EQ(refusal({}), "");
  expect("norm.kind = \"batch\" needs model = mlp, cnn, resnet20 or resnet50: softmax",
         [](Config& c) {
           c.model = "softmax";
           c.norm.kind = "batch";
         });
  expect("norm.groups = 64 does not divide the 32 channels of layer conv1_norm", [](Config& c) {
    c.norm.kind = "group";
    c.norm.groups = 64;
  });
  expect("train.drop_path = 0.5 needs model = resmlp", [](Config& c) { c.train.drop_path = 0.5; });
  expect("fp16 compute without loss scaling", [](Config& c) {
    c.precision.compute = "fp16";
    c.precision.loss_scale = "none";
  });
  expect("precision.initial_scale = 1000 must be a power of two",
         [](Config& c) { c.precision.initial_scale = 1000; });
  Config fine;
  fine.model = "resmlp";
  fine.train.drop_path = 0.5;
  fine.precision.compute = "fp16";
  EXPECT_EQ(refusal(fine), "");
}

}  // namespace
}  // namespace paceline
