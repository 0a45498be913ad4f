// SPDX-License-Identifier: Apache-2.0
// ResNets: published parameter counts, gradients and evaluation against PyTorch in float64
// (make_golden.py), rounding inside blocks, and statistics shared over ranks.
#include "common/core/resnet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/base/error.h"
#include "common/core/statistics_reducer.h"
#include "tests/core/golden.h"
#include "tests/core/inputs.h"

namespace paceline {
namespace {

/// Elements by what stands before the first dot of a parameter's name.
std::map<std::string, std::size_t> counts_of(const Model& model) {
  std::map<std::string, std::size_t> counts;
  for (const Parameter& parameter : model.parameters()) {
    counts[parameter.name.substr(0, parameter.name.find('.'))] += parameter.range.size();
  }
  return counts;
}

TEST(ResNet, HasThePublishedNumbersOfParameters) {
  const auto large = make_model("resnet50", {224, 224, 3}, 1000);
  EXPECT_EQ(counts_of(*large), (std::map<std::string, std::size_t>{{"conv1", 9408},
                                                                   {"conv1_norm", 128},
                                                                   {"layer1", 215808},
                                                                   {"layer2", 1219584},
                                                                   {"layer3", 7098368},
                                                                   {"layer4", 14964736},
                                                                   {"fc", 2049000}}));
  EXPECT_EQ(large->parameter_elements(), 25557032U);
  EXPECT_EQ(large->layers(), 3 + 16 + 2);
  EXPECT_EQ(large->buffers().size(), 2U * 26560U);  // a mean and a variance per norm channel
  const auto small = make_model("resnet20", {32, 32, 3}, 10);
  EXPECT_EQ(small->parameter_elements(), 272474U);
  EXPECT_EQ(small->layers(), 2 + 9 + 2);
  double flops = 0.0;
  for (int l = 0; l < small->layers(); ++l) {
    flops += small->layer_flops(l);
  }
  EXPECT_NEAR(flops / 2e6, 41.0, 1.5);  // the paper's 41 M multiply-adds, norms and sums besides
}

struct Trained {
  BatchResult result;
  std::vector<float> gradients;
  std::vector<float> buffers;
};

/// A model, its first weights and a batch.
struct Bench {
  Bench(std::unique_ptr<Model> built, std::int64_t n)
      : model(std::move(built)),
        samples(n),
        x(test::values(11, static_cast<std::size_t>(n * model->input_shape().elements()))),
        y(test::labels(13, static_cast<std::size_t>(n), 10)),
        weights(model->parameter_elements()) {
    model->initialise(weights, 7);
  }
  Trained train(std::int64_t n) {
    Trained trained;
    trained.gradients.resize(weights.size(), 1e30F);
    const auto pixels = static_cast<std::size_t>(n * model->input_shape().elements());
    trained.result = model->train_batch(
        {std::span(x).first(pixels), std::span(y).first(static_cast<std::size_t>(n)), n}, weights,
        trained.gradients, nullptr);
    trained.buffers.assign(model->buffers().begin(), model->buffers().end());
    return trained;
  }

  std::unique_ptr<Model> model;
  std::int64_t samples;
  std::vector<float> x;
  std::vector<std::int32_t> y;
  std::vector<float> weights;
};

ModelOptions batch_norm() {
  ModelOptions options;
  options.norm.kind = "batch";
  return options;
}

void expect_golden(Bench bench, const char* name, double tolerance) {
  const test::Golden golden = test::read_golden(name);
  const Trained trained = bench.train(bench.samples);
  const double loss = golden.at("loss").at(0);
  EXPECT_NEAR(trained.result.loss_sum, loss, tolerance * loss);
  EXPECT_EQ(static_cast<double>(trained.result.correct), golden.at("correct").at(0));
  test::expect_gradients(*bench.model, trained.gradients, golden, tolerance);
  const BatchResult evaluation =
      bench.model->evaluate_batch({bench.x, bench.y, bench.samples}, bench.weights);
  EXPECT_NEAR(evaluation.loss_sum, golden.at("evaluation").at(0), tolerance * loss);
}

constexpr double kDeepTolerance = 1e-4;  // twenty norms over small batches enlarge rounding errors

TEST(ResNet, TwentyLayersMatchPyTorch) {
  expect_golden({make_model("resnet20", {12, 12, 3}, 10), 6}, "resnet20", kDeepTolerance);
}

TEST(ResNet, BottlenecksAndLargeStemMatchPyTorch) {
  const ResNetPlan plan{true, true, 4, {1, 2, 1}};
  expect_golden({make_resnet("bottleneck", plan, {40, 40, 3}, 10, batch_norm()), 4}, "bottleneck",
                kDeepTolerance);
}

std::unique_ptr<Model> tiny(const ModelOptions& options) {
  return make_resnet("tiny", {false, false, 4, {1, 1}}, {6, 6, 3}, 10, options);
}

class ResNetPrecision : public testing::TestWithParam<Precision> {};

/// γ = 1, β = 0 are exact in every format, so weights rounded beforehand must change nothing.
TEST_P(ResNetPrecision, RoundsTheWeightsInsideBlocks) {
  ModelOptions options = batch_norm();
  const Trained full = Bench(tiny(options), 4).train(4);
  options.precision = GetParam();
  Bench bench(tiny(options), 4);
  const Trained emulated = bench.train(4);
  const Parameter& inside = bench.model->parameters().front();
  ASSERT_LT(inside.layer, bench.model->layers());
  round_values(options.precision, bench.weights);
  const Trained rounded = bench.train(4);
  EXPECT_EQ(rounded.gradients, emulated.gradients);
  EXPECT_EQ(rounded.result.loss_sum, emulated.result.loss_sum);
  EXPECT_NE(emulated.result.loss_sum, full.result.loss_sum);
  EXPECT_NEAR(emulated.result.loss_sum, full.result.loss_sum, 0.05 * full.result.loss_sum);
  for (const Parameter& parameter : bench.model->parameters()) {
    if (parameter.name.ends_with(".weight")) {
      const auto range =
          std::span(emulated.gradients).subspan(parameter.range.begin, parameter.range.size());
      std::vector<float> copy(range.begin(), range.end());
      round_values(options.precision, copy);
      EXPECT_TRUE(std::ranges::equal(copy, range)) << parameter.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ResNetPrecision,
                         testing::Values(Precision::bf16, Precision::fp16), [](const auto& tested) {
                           return std::string(precision_name(tested.param));
                         });

/// One rank alone: sums stay as they are.
class CountingReducer final : public StatisticsReducer {
 public:
  void sum(std::span<double> /*values*/) override { ++calls; }
  int calls = 0;
};

/// A rank without samples makes the calls of one that has some, or ranks would wait for ever.
TEST(ResNet, SharesStatisticsWithoutSamplesAsWithSome) {
  CountingReducer reducer;
  ModelOptions options = batch_norm();
  const Trained alone = Bench(tiny(options), 4).train(4);
  options.norm.kind = "sync_batch";
  options.reducer = &reducer;
  Bench bench(tiny(options), 4);
  EXPECT_TRUE(bench.model->collective());
  const Trained some = bench.train(4);
  EXPECT_EQ(some.buffers, alone.buffers);
  const int calls = reducer.calls;
  EXPECT_EQ(calls, 2 * 6);  // forward and backward of the stem, two blocks and a projection
  const Trained none = bench.train(0);
  EXPECT_EQ(reducer.calls, 2 * calls);
  EXPECT_EQ(none.gradients, std::vector<float>(none.gradients.size()));
  EXPECT_EQ(none.buffers, some.buffers);
}

TEST(ResNet, TakesEveryNormButNone) {
  for (const char* kind : {"auto", "batch", "sync_batch", "group", "layer"}) {
    ModelOptions options;
    options.norm.kind = kind;
    EXPECT_NO_THROW(static_cast<void>(make_model("resnet20", {28, 28, 1}, 10, options))) << kind;
    EXPECT_NO_THROW(static_cast<void>(make_model("resnet50", {28, 28, 1}, 10, options))) << kind;
  }
  ModelOptions options;
  options.norm.kind = "none";
  try {
    static_cast<void>(make_model("resnet20", {32, 32, 3}, 10, options));
    FAIL() << "was accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("norm.kind = \"none\" with model = resnet20"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace paceline
