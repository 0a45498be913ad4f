// SPDX-License-Identifier: Apache-2.0
// The transformer against PyTorch in float64 (make_golden.py) and against its textbook form.
#include <gtest/gtest.h>

#include <cmath>

#include "common/base/error.h"
#include "common/core/cpu/transformer.h"
#include "common/core/kernels_transformer.h"
#include "common/core/model.h"
#include "tests/core/golden.h"
#include "tests/core/inputs.h"
#include "tests/core/layer_check.h"

namespace paceline {
namespace {

constexpr std::int64_t kContext = 8;
constexpr std::int64_t kSamples = 3;

std::unique_ptr<Model> small_gpt(std::int64_t context = kContext, std::int64_t evaluated = 64) {
  ModelOptions options;
  options.evaluation_samples = evaluated;
  options.gpt = {2, 2, 16};
  return make_model("gpt", {context, 1, 1}, 256, options);
}

struct GptBatch {
  std::vector<float> tokens;
  std::vector<std::int32_t> labels = test::labels(13, kSamples* kContext, 256);
  GptBatch() {
    for (const std::int32_t token : test::labels(11, kSamples * kContext, 256)) {
      tokens.push_back(static_cast<float>(token));
    }
  }
  [[nodiscard]] Batch all() const { return {tokens, labels, kSamples}; }
};

TEST(Gpt, LossAndGradientsMatchPyTorch) {
  const auto golden = test::read_golden("gpt");
  const auto model = small_gpt();
  const GptBatch batch;
  std::vector<float> weights(model->parameter_elements());
  std::vector<float> gradients(weights.size());
  model->initialise(weights, 7);
  const BatchResult result = model->train_batch(batch.all(), weights, gradients, nullptr);
  EXPECT_NEAR(result.loss_sum, golden.at("loss").at(0), 1e-5 * golden.at("loss").at(0));
  EXPECT_NEAR(result.correct, golden.at("correct").at(0), 1e-6);
  test::expect_gradients(*model, gradients, golden, 1e-5);
  for (const std::int64_t part : {3, 2, 1}) {
    const BatchResult evaluated = small_gpt(kContext, part)->evaluate_batch(batch.all(), weights);
    EXPECT_NEAR(evaluated.loss_sum, result.loss_sum, 1e-6 * result.loss_sum) << part;
    EXPECT_NEAR(evaluated.correct, result.correct, 1e-6) << part;
  }
}

TEST(Gpt, HasTheParametersOfTheFormula) {
  for (const auto& [layers, width, context] : {std::tuple{1, 8, 4}, {3, 64, 128}, {12, 768, 64}}) {
    ModelOptions options;
    options.gpt = {layers, 2, width};
    const auto model = make_model("gpt", {context, 1, 1}, 256, options);
    const auto expected =
        256 * width + context * width + layers * (12 * width * width + 13 * width) + 2 * width;
    EXPECT_EQ(model->parameter_elements(), static_cast<std::size_t>(expected));
    EXPECT_EQ(model->classes(), 256);
    EXPECT_EQ(model->positions(), context);
  }
}

/// A byte changes what is predicted at its own place and after it, never before.
TEST(Gpt, LooksAtThePastAlone) {
  GptBatch batch;
  const auto model = small_gpt();
  std::vector<float> weights(model->parameter_elements());
  model->initialise(weights, 7);
  const auto loss = [&](std::int64_t positions) {
    const auto shorter = small_gpt(positions);  // the first positions alone
    std::vector<float> tokens(batch.tokens.begin(), batch.tokens.begin() + positions);
    std::vector<std::int32_t> labels(batch.labels.begin(), batch.labels.begin() + positions);
    std::vector<float> own;  // all of the weights but the later positions'
    for (const Parameter& p : model->parameters()) {
      const std::size_t kept = p.name == "embedding.position"
                                   ? static_cast<std::size_t>(positions * 16)
                                   : p.range.size();
      own.insert(own.end(), weights.begin() + static_cast<std::ptrdiff_t>(p.range.begin),
                 weights.begin() + static_cast<std::ptrdiff_t>(p.range.begin + kept));
    }
    return shorter->evaluate_batch({tokens, labels, 1}, own).loss_sum *
           static_cast<double>(positions);
  };
  const double before = loss(5);
  const double after = loss(6);
  batch.tokens[5] = batch.tokens[5] > 0 ? 0.0F : 1.0F;
  EXPECT_EQ(loss(5), before);
  EXPECT_NE(loss(6), after);
}

TEST(Gpt, RefusesWhatCannotBe) {
  ModelOptions options;
  options.gpt = {2, 3, 16};
  EXPECT_THROW(static_cast<void>(make_model("gpt", {8, 1, 1}, 256, options)), ConfigError);
  options.gpt = {2, 2, 16};
  options.precision = Precision::bf16;
  EXPECT_THROW(static_cast<void>(make_model("gpt", {8, 1, 1}, 256, options)), ConfigError);
  const auto model = small_gpt();
  GptBatch batch;
  std::vector<float> weights(model->parameter_elements());
  EXPECT_THROW(model->evaluate_batch(
                   {batch.tokens, std::span(batch.labels).first(kSamples), kSamples}, weights),
               Error);
}

/// One block in double, from the equations of transformer.h.
class NaiveBlock {
 public:
  NaiveBlock(std::int64_t samples, const TransformerShape& shape)
      : n_(samples), t_(shape.positions), c_(shape.width), h_(shape.heads) {}

  test::Tensor operator()(const test::Tensor& x, std::span<const double> w) {
    w_ = w;
    test::Tensor normed = norm(x);
    const test::Tensor qkv = linear(normed, c_, 3 * c_);
    const test::Tensor projected = linear(attention(qkv), c_, c_);
    test::Tensor middle = x;
    for (std::size_t i = 0; i < middle.size(); ++i) middle[i] += projected[i];
    test::Tensor hidden = linear(norm(middle), c_, 4 * c_);
    for (double& v : hidden) {
      v *= 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    }
    test::Tensor y = linear(hidden, 4 * c_, c_);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += middle[i];
    return y;
  }

 private:
  std::span<const double> take(std::int64_t n) {
    const auto part = w_.first(static_cast<std::size_t>(n));
    w_ = w_.subspan(part.size());
    return part;
  }
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  test::Tensor norm(const test::Tensor& x) {
    const auto gamma = take(c_);
    const auto beta = take(c_);
    test::Tensor y(x.size());
    for (std::int64_t row = 0; row < n_ * t_; ++row) {
      double mean = 0;
      double square = 0;
      for (std::int64_t c = 0; c < c_; ++c) mean += x[at(row * c_ + c)] / double(c_);
      for (std::int64_t c = 0; c < c_; ++c) {
        square += std::pow(x[at(row * c_ + c)] - mean, 2) / double(c_);
      }
      for (std::int64_t c = 0; c < c_; ++c) {
        y[at(row * c_ + c)] =
            (x[at(row * c_ + c)] - mean) / std::sqrt(square + 1e-5) * gamma[at(c)] + beta[at(c)];
      }
    }
    return y;
  }

  test::Tensor linear(const test::Tensor& x, std::int64_t in, std::int64_t out) {
    const auto weight = take(out * in);
    const auto bias = take(out);
    test::Tensor y(at(n_ * t_ * out));
    for (std::int64_t row = 0; row < n_ * t_; ++row) {
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = bias[at(o)];
        for (std::int64_t i = 0; i < in; ++i) sum += weight[at(o * in + i)] * x[at(row * in + i)];
        y[at(row * out + o)] = sum;
      }
    }
    return y;
  }

  test::Tensor attention(const test::Tensor& qkv) const {
    const std::int64_t d = c_ / h_;
    test::Tensor y(at(n_ * t_ * c_));
    const auto value = [&](std::int64_t row, std::int64_t part, std::int64_t channel) {
      return qkv[at((row * 3 + part) * c_ + channel)];
    };
    for (std::int64_t i = 0; i < n_ * t_ * h_; ++i) {
      const std::int64_t row = i / h_;
      const std::int64_t first = i % h_ * d;
      const std::int64_t begin = row / t_ * t_;
      test::Tensor share;
      double total = 0;
      for (std::int64_t other = begin; other <= row; ++other) {
        double dot = 0;
        for (std::int64_t k = 0; k < d; ++k) {
          dot += value(row, 0, first + k) * value(other, 1, first + k);
        }
        share.push_back(std::exp(dot / std::sqrt(double(d))));
        total += share.back();
      }
      for (std::int64_t other = begin; other <= row; ++other) {
        for (std::int64_t k = 0; k < d; ++k) {
          y[at(row * c_ + first + k)] +=
              share[at(other - begin)] / total * value(other, 2, first + k);
        }
      }
    }
    return y;
  }

  std::int64_t n_;
  std::int64_t t_;
  std::int64_t c_;
  std::int64_t h_;
  std::span<const double> w_;
};

TEST(TransformerBlock, IsItsEquationsAndTheirDerivatives) {
  const TransformerShape shape{5, 6, 2, 256};
  const auto block = make_transformer_block(make_transformer_scratch(), "block", shape);
  NaiveBlock naive(2, shape);
  test::check_layer(*block, 2, test::values(1, 2 * 5 * 6),
                    [&](const test::Tensor& x, std::span<const double> w) { return naive(x, w); });
}

TEST(TransformerKernels, ExponentialIsExactToTwoUnits) {
  for (float x = -86.0F; x < 88.0F; x += 0.0137F) {
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_NEAR(kernels::vector_exp(x) / exact, 1.0, 2.5e-7) << x;
  }
  EXPECT_GT(kernels::vector_exp(-1e30F), 0.0F);
  EXPECT_LT(kernels::vector_exp(-INFINITY), 1e-37F);
}

}  // namespace
}  // namespace paceline
