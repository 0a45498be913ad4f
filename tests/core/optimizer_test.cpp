// SPDX-License-Identifier: Apache-2.0
// What every owner of weights relies on: element-wise bits, in place or not, cut anywhere, and
// state that survives a checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/core/arena_optimizer.h"
#include "common/core/lr_schedule.h"
#include "common/core/optimizer.h"
#include "tests/core/inputs.h"
#include "tests/support/layerwise_reference.h"

namespace paceline {
namespace {

class MemoryCheckpoint final : public StateWriter, public StateReader {
 public:
  void put(std::string_view name, std::span<const float> values) override {
    arrays_.emplace(name, std::vector<float>(values.begin(), values.end()));
  }
  void put(std::string_view name, std::int64_t value) override { integers_.emplace(name, value); }
  void get(std::string_view name, std::span<float> values) override {
    std::ranges::copy(arrays_.at(std::string(name)), values.begin());
  }
  std::int64_t get(std::string_view name) override { return integers_.at(std::string(name)); }
  void clear() {
    arrays_.clear();
    integers_.clear();
  }
  [[nodiscard]] std::size_t arrays() const { return arrays_.size(); }

 private:
  std::map<std::string, std::vector<float>> arrays_;
  std::map<std::string, std::int64_t> integers_;
};

class OptimizerBits : public testing::TestWithParam<OptimizerSpec> {};

constexpr std::size_t kElements = 1003;
constexpr int kSteps = 4;

UpdateInfo info_of(int step) {
  return {step, 0.05F, 1.0F / 7.0F};
}

std::vector<float> run_whole(const OptimizerSpec& spec) {
  Optimizer optimizer(spec, kElements);
  std::vector<float> weights = test::values(1, kElements);
  for (int step = 0; step < kSteps; ++step) {
    const auto gradient = test::values(10 + static_cast<std::uint64_t>(step), kElements);
    optimizer.apply(0, weights, weights, gradient, info_of(step));
  }
  return weights;
}

TEST_P(OptimizerBits, DoNotDependOnWhereARangeIsCut) {
  const std::vector<float> whole = run_whole(GetParam());
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{64}, kElements / 2}) {
    Optimizer optimizer(GetParam(), kElements);
    std::vector<float> weights = test::values(1, kElements);
    for (int step = 0; step < kSteps; ++step) {
      const auto gradient = test::values(10 + static_cast<std::uint64_t>(step), kElements);
      for (std::size_t begin = 0; begin < kElements; begin += piece) {
        const std::size_t n = std::min(piece, kElements - begin);
        const std::span part = std::span(weights).subspan(begin, n);
        optimizer.apply(begin, part, part, std::span(gradient).subspan(begin, n), info_of(step));
      }
    }
    EXPECT_EQ(weights, whole) << "pieces of " << piece;
  }
}

TEST_P(OptimizerBits, AreTheSameOutOfPlace) {
  Optimizer optimizer(GetParam(), kElements);
  std::vector<float> weights = test::values(1, kElements);
  std::vector<float> next(kElements);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> before = weights;
    const auto gradient = test::values(10 + static_cast<std::uint64_t>(step), kElements);
    optimizer.apply(0, weights, next, gradient, info_of(step));
    EXPECT_EQ(weights, before);
    weights.swap(next);
  }
  EXPECT_EQ(weights, run_whole(GetParam()));
}

TEST_P(OptimizerBits, SurviveACheckpoint) {
  std::vector<float> weights = test::values(1, kElements);
  MemoryCheckpoint checkpoint;
  for (int step = 0; step < kSteps; ++step) {
    Optimizer optimizer(GetParam(), kElements);  // a new process each step
    if (step > 0) {
      optimizer.load(checkpoint);
    }
    const auto gradient = test::values(10 + static_cast<std::uint64_t>(step), kElements);
    optimizer.apply(0, weights, weights, gradient, info_of(step));
    checkpoint.clear();
    optimizer.save(checkpoint);
    EXPECT_EQ(optimizer.state_bytes(), checkpoint.arrays() * kElements * sizeof(float));
  }
  EXPECT_EQ(weights, run_whole(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, OptimizerBits,
    testing::Values(OptimizerSpec{}, OptimizerSpec{.momentum = 0.9F, .weight_decay = 1e-3F},
                    OptimizerSpec{.nesterov = true, .momentum = 0.9F, .weight_decay = 1e-3F},
                    OptimizerSpec{.kind = OptimizerKind::adam, .weight_decay = 1e-3F}));

TEST(Optimizer, HoldsOnlyTheStateItNeeds) {
  EXPECT_EQ(Optimizer({}, 100).state_bytes(), 0U);
  EXPECT_EQ(Optimizer({.momentum = 0.9F}, 100).state_bytes(), 400U);
  EXPECT_EQ(Optimizer({.kind = OptimizerKind::adam}, 100).state_bytes(), 800U);
}

TEST(Optimizer, RefusesARangeThatDoesNotFit) {
  Optimizer optimizer({.momentum = 0.9F}, 10);
  std::vector<float> weights(10);
  const std::vector<float> gradient(10);
  EXPECT_THROW(optimizer.apply(1, weights, weights, gradient, {}), Error);
  EXPECT_THROW(optimizer.apply(11, {}, {}, {}, {}), Error);
  EXPECT_THROW(optimizer.apply(0, weights, weights, std::span(gradient).first(9), {}), Error);
  EXPECT_NO_THROW(optimizer.apply(10, {}, {}, {}, {}));
}

/// A matrix of 4 rows and a bias, in two buckets.
BucketPlan two_tensors() {
  BucketPlan plan(std::vector<std::size_t>{12, 5});
  plan.set_tensors({{{0, 12}, 4, 2}, {{12, 17}, 1, 1}});
  return plan;
}

class Layerwise : public testing::TestWithParam<OptimizerKind> {};

TEST_P(Layerwise, FollowsThePaper) {
  OptimizerSpec spec;
  spec.kind = GetParam();
  spec.momentum = 0.9F;
  spec.weight_decay = 0.01F;
  spec.trust = 0.02F;
  const BucketPlan plan = two_tensors();
  ArenaOptimizer optimizer(spec, plan);
  std::vector<float> weights = test::values(1, plan.elements());
  std::vector<double> w(weights.begin(), weights.end());
  std::vector<double> m(w.size());
  std::vector<double> v(w.size());
  for (int t = 0; t < 5; ++t) {
    std::vector<float> gradients = test::values(20 + static_cast<std::uint64_t>(t), w.size());
    std::vector<double> g(gradients.begin(), gradients.end());
    for (double& value : g) value *= 0.25;
    for (const TensorRange& tensor : plan.tensors()) {
      const auto part = [&](auto& of) {
        return std::span(of).subspan(tensor.range.begin, tensor.range.size());
      };
      test::reference_layerwise(spec, t, 0.1, tensor.dimensions > 1, part(w), part(g), part(m),
                                part(v));
    }
    ASSERT_TRUE(optimizer.apply(weights, gradients, 0.1F, 0.25F));
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_NEAR(weights[i], w[i], 2e-6) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Layerwise,
                         testing::Values(OptimizerKind::lars, OptimizerKind::lamb),
                         [](const auto& tested) {
                           return tested.param == OptimizerKind::lars ? "lars" : "lamb";
                         });

TEST(ArenaOptimizer, ClipsTheMeanGradientByItsGlobalNorm) {
  OptimizerSpec spec;
  spec.clip_norm = 1.0F;
  ArenaOptimizer optimizer(spec, two_tensors());
  std::vector<float> weights(17, 0.0F);
  std::vector<float> gradients(17, 0.0F);
  gradients[0] = 6.0F;  // with scale 1/2 the mean gradient is (3, …, 4): its norm is 5
  gradients[16] = 8.0F;
  ASSERT_TRUE(optimizer.apply(weights, gradients, 1.0F, 0.5F));
  EXPECT_NEAR(weights[0], -3.0 / 5.0, 1e-5);
  EXPECT_NEAR(weights[16], -4.0 / 5.0, 1e-5);
}

TEST(ArenaOptimizer, LeavesOutWhatIsNotFinite) {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::adam;
  spec.skip_nonfinite = true;
  ArenaOptimizer optimizer(spec, two_tensors());
  std::vector<float> weights = test::values(1, 17);
  const std::vector<float> before = weights;
  std::vector<float> gradients(17, 1.0F);
  gradients[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(optimizer.apply(weights, gradients, 0.1F, 1.0F));
  EXPECT_EQ(weights, before);
  EXPECT_EQ(optimizer.updates(0), 0);
}

TEST(LrSchedule, WarmsUpLinearly) {
  LrSchedule schedule{.base = 0.4, .warmup_steps = 4};
  for (int t = 0; t < 4; ++t) {
    EXPECT_DOUBLE_EQ(schedule.at(t), 0.1 * (t + 1));
  }
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.4);
  EXPECT_DOUBLE_EQ(schedule.at(1000000), 0.4);
}

TEST(LrSchedule, GradualWarmUpGoesFromTheBaseRateToThePeak) {
  // Goyal et al. 2017: from 0.1 in equal increments to 8 times that, then decay from there.
  const LrSchedule schedule{.kind = ScheduleKind::step,
                            .base = 0.8,
                            .warmup_from = 0.1,
                            .warmup_steps = 7,
                            .step_every = 3,
                            .gamma = 0.1};
  for (int t = 0; t < 7; ++t) {
    EXPECT_NEAR(schedule.at(t), 0.1 + 0.1 * (t + 1), 1e-15);
  }
  EXPECT_DOUBLE_EQ(schedule.at(9), 0.8);
  EXPECT_DOUBLE_EQ(schedule.at(10), 0.8 * 0.1);
}

TEST(LrSchedule, StepsDownFromTheEndOfWarmUp) {
  const LrSchedule schedule{
      .kind = ScheduleKind::step, .base = 1.0, .warmup_steps = 5, .step_every = 10, .gamma = 0.5};
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(14), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(15), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(24), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(25), 0.25);
}

TEST(LrSchedule, CosineGoesFromBaseToMinimum) {
  const LrSchedule schedule{.kind = ScheduleKind::cosine,
                            .base = 1.0,
                            .total_steps = 111,
                            .warmup_steps = 10,
                            .minimum = 0.2};
  EXPECT_DOUBLE_EQ(schedule.at(9), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(10), 1.0);
  EXPECT_NEAR(schedule.at(60), 0.6, 1e-12);
  EXPECT_NEAR(schedule.at(110), 0.2, 1e-12);
  EXPECT_NEAR(schedule.at(5000), 0.2, 1e-12);
  for (int t = 11; t <= 110; ++t) {
    EXPECT_LT(schedule.at(t), schedule.at(t - 1));
  }
  const LrSchedule one{.kind = ScheduleKind::cosine, .base = 0.3, .total_steps = 1};
  EXPECT_DOUBLE_EQ(one.at(0), 0.3);
}

}  // namespace
}  // namespace paceline
