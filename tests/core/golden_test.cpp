// SPDX-License-Identifier: Apache-2.0
// Models and optimizers against PyTorch in float64 (make_golden.py).
#include <gtest/gtest.h>

#include "common/core/model.h"
#include "common/core/optimizer.h"
#include "tests/core/golden.h"
#include "tests/core/inputs.h"

namespace paceline {
namespace {

constexpr double kTolerance = 1e-5;

class GoldenModel : public testing::TestWithParam<const char*> {};

TEST_P(GoldenModel, GradientsMatchPyTorch) {
  const auto golden = test::read_golden(GetParam());
  const std::int64_t samples = 6;
  const std::string full = GetParam();
  const std::string name = full.substr(0, full.find('_'));
  ModelOptions options;
  if (name != full) {
    options.norm.kind = full.substr(name.size() + 1);
  }
  const auto model = make_model(name, {28, 28, 1}, 10, options);
  const auto x = test::values(11, static_cast<std::size_t>(samples) * 784);
  const auto y = test::labels(13, static_cast<std::size_t>(samples), 10);
  std::vector<float> weights(model->parameter_elements());
  std::vector<float> gradients(weights.size());
  model->initialise(weights, 7);
  const BatchResult result = model->train_batch({x, y, samples}, weights, gradients, nullptr);

  EXPECT_NEAR(result.loss_sum, golden.at("loss").at(0), kTolerance * golden.at("loss").at(0));
  EXPECT_EQ(static_cast<double>(result.correct), golden.at("correct").at(0));
  test::expect_gradients(*model, gradients, golden, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModel,
                         testing::Values("softmax", "mlp", "cnn", "mlp_layer", "cnn_batch",
                                         "cnn_group"),
                         [](const auto& tested) { return std::string(tested.param); });

struct OptimizerCase {
  const char* name;
  OptimizerSpec spec;
  float lr;
};

class GoldenOptimizer : public testing::TestWithParam<OptimizerCase> {};

TEST_P(GoldenOptimizer, TrajectoryMatchesPyTorch) {
  const OptimizerCase& p = GetParam();
  const auto golden = test::read_golden("optimizers");
  std::vector<float> weights = test::values(17, 19);
  const std::vector<float> start = weights;
  Optimizer optimizer(p.spec, weights.size());
  for (int step = 0; step < 7; ++step) {
    const auto gradient = test::values(100 + static_cast<std::uint64_t>(step), weights.size());
    // Sums of 4 samples, scaled back by the update, as a backend does.
    std::vector<float> sums = gradient;
    for (float& value : sums) {
      value *= 4.0F;
    }
    optimizer.apply(0, weights, weights, sums, {step, p.lr, 0.25F});
    const auto& expected = golden.at(std::string(p.name) + "." + std::to_string(step));
    ASSERT_EQ(expected.size(), weights.size());
    ASSERT_LE(test::relative_error(weights, expected), kTolerance) << "step " << step;
  }
  EXPECT_GT(test::relative_error(weights, test::widen(start)), 0.01);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, GoldenOptimizer,
    testing::Values(
        OptimizerCase{"sgd", {}, 0.1F}, OptimizerCase{"sgd_decay", {.weight_decay = 0.01F}, 0.1F},
        OptimizerCase{"momentum", {.momentum = 0.9F}, 0.1F},
        OptimizerCase{"momentum_decay", {.momentum = 0.9F, .weight_decay = 0.01F}, 0.1F},
        OptimizerCase{"nesterov", {.nesterov = true, .momentum = 0.9F}, 0.1F},
        OptimizerCase{
            "nesterov_decay", {.nesterov = true, .momentum = 0.9F, .weight_decay = 0.01F}, 0.1F},
        OptimizerCase{"adam", {.kind = OptimizerKind::adam}, 0.01F},
        OptimizerCase{"adam_decay",
                      {.kind = OptimizerKind::adam,
                       .weight_decay = 0.01F,
                       .beta1 = 0.8F,
                       .beta2 = 0.99F,
                       .epsilon = 1e-6F},
                      0.01F}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace paceline
