// SPDX-License-Identifier: Apache-2.0
#include "common/core/device_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/core/step_stretch.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

/// Runs the layers of one step with no real work, returns its duration in ns.
std::int64_t paced_step(DevicePace& pace, const Model& model) {
  const std::int64_t begin = now_ns();
  pace.begin(begin);
  for (int layer = 0; layer < model.layers(); ++layer) {
    pace.forward_done(layer);
  }
  for (int layer = model.layers() - 1; layer >= 0; --layer) {
    pace.backward_done(layer);
  }
  pace.finish();
  return now_ns() - begin;
}

TEST(DevicePace, AStepNeverTakesLessThanTheDevice) {
  const auto model = make_model("mlp", {28, 28, 1}, 10);
  DevicePace pace(*model, 20ms);
  // Shares are rounded down to whole nanoseconds, three per layer at most.
  EXPECT_GE(paced_step(pace, *model), 20'000'000 - 3 * model->layers());
}

TEST(DevicePace, WithoutEmulationNothingWaitsAndNothingIsLate) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 0ns);
  paced_step(pace, *model);
  EXPECT_EQ(pace.late_fraction(), 0.0);
}

TEST(DevicePace, AHostSlowerThanTheDeviceIsLate) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 1ms);
  pace.begin(now_ns() - 2'000'000);
  for (int layer = 0; layer < model->layers(); ++layer) {
    pace.forward_done(layer);
    pace.backward_done(layer);
  }
  pace.finish();
  EXPECT_EQ(pace.late_fraction(), 1.0);
}

TEST(DevicePace, ABlockedSeamDelaysTheDeviceAsWell) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 5ms);
  const std::int64_t begin = now_ns();
  pace.begin(begin);
  const std::int64_t weights_came = begin + 30'000'000;
  sleep_until_ns(weights_came);
  pace.stalled(30'000'000, weights_came);
  for (int layer = 0; layer < model->layers(); ++layer) {
    pace.forward_done(layer);
    pace.backward_done(layer);
  }
  EXPECT_GE(now_ns(), weights_came + 5'000'000 - 3 * model->layers());
}

TEST(DevicePace, AStragglerTakesAFactorOfTheDevicesTime) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 2ms);
  const std::int64_t begin = now_ns();
  pace.begin(begin, 4.0);
  for (int layer = 0; layer < model->layers(); ++layer) {
    pace.forward_done(layer);
    pace.backward_done(layer);
  }
  EXPECT_GE(now_ns() - begin, 4 * (2'000'000 - 3 * model->layers()) - 2);
}

TEST(DevicePace, AStragglerWithoutADeviceTakesAFactorOfItsOwnTime) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 0ns);
  const std::int64_t begin = now_ns() - 4'000'000;  // it has worked for 4 ms
  pace.begin(begin, 3.0);
  pace.forward_done(0);
  EXPECT_GE(now_ns() - begin, 12'000'000);
}

TEST(DevicePace, AStragglersWaitIsNotStretched) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 0ns);
  const std::int64_t hour = 3'600'000'000'000;
  const std::int64_t now = now_ns();
  pace.begin(now - hour, 2.0);
  pace.stalled(hour, now);
  pace.forward_done(0);  // an hour's sleep would run into the test's time limit
}

StepStretch stretch_of(const std::string& slow_rank, const std::string& jitter, int rank = 0,
                       std::uint64_t seed = 1) {
  Config config;
  config.world = 4;
  config.seed = seed;
  config.fault.slow_rank = slow_rank;
  config.fault.jitter = jitter;
  return {config, rank};
}

TEST(StepStretch, IsTheRanksFactor) {
  EXPECT_EQ(StepStretch().factor(5), 1.0);
  EXPECT_EQ(stretch_of("2:4x,0:1.5x", "none", 2).factor(7), 4.0);
  EXPECT_EQ(stretch_of("2:4x,0:1.5x", "none", 0).factor(7), 1.5);
  EXPECT_EQ(stretch_of("2:4x,0:1.5x", "none", 1).factor(7), 1.0);
  EXPECT_DOUBLE_EQ(stretch_of("2:4x", "normal:0.1", 2).factor(9),
                   4.0 * stretch_of("", "normal:0.1", 2).factor(9));
  EXPECT_EQ(stretch_of("0:900x", "exponential:10").factor(3), kMostStretch);
}

TEST(StepStretch, DependsOnSeedRankAndStepAlone) {
  const StepStretch stretch = stretch_of("", "normal:0.1", 1);
  const double later = stretch.factor(1000);
  EXPECT_EQ(stretch.factor(1000), later);
  EXPECT_EQ(stretch_of("", "normal:0.1", 1).factor(1000), later);
  EXPECT_NE(stretch.factor(1001), later);
  EXPECT_NE(stretch_of("", "normal:0.1", 2).factor(1000), later);
  EXPECT_NE(stretch_of("", "normal:0.1", 1, 2).factor(1000), later);
}

/// P(|z| <= x) of a standard normal z.
double within(double x) {
  return std::erf(x / std::sqrt(2.0));
}

TEST(StepStretch, FollowsItsDistribution) {
  struct Case {
    const char* text;
    double mean;                     ///< of J
    double (*below)(double jitter);  ///< P(J <= jitter)
  };
  const double pi = std::acos(-1.0);
  const Case cases[] = {
      {"uniform:0.4", 0.2, [](double j) { return std::min(j / 0.4, 1.0); }},
      {"normal:0.5", 0.5 * std::sqrt(2.0 / pi), [](double j) { return within(j / 0.5); }},
      {"lognormal:0.3", std::exp(0.045) * (1.0 + std::erf(0.3 / std::sqrt(2.0))) - 1.0,
       [](double j) { return within(std::log1p(j) / 0.3); }},
      {"exponential:0.2", 0.2, [](double j) { return 1.0 - std::exp(-j / 0.2); }},
  };
  constexpr int kSteps = 20'000;
  for (const Case& each : cases) {
    SCOPED_TRACE(each.text);
    const StepStretch stretch = stretch_of("", each.text);
    std::vector<double> jitters;
    for (int step = 0; step < kSteps; ++step) jitters.push_back(stretch.factor(step) - 1.0);
    std::ranges::sort(jitters);
    EXPECT_GE(jitters.front(), 0.0);
    const double sum = std::accumulate(jitters.begin(), jitters.end(), 0.0);
    EXPECT_NEAR(sum / kSteps, each.mean, 0.03 * each.mean);
    double distance = 0.0;  // Kolmogorov-Smirnov; 1.63/sqrt(n) is passed by 1% of fair samples
    for (int i = 0; i < kSteps; ++i) {
      const double expected = each.below(jitters[static_cast<std::size_t>(i)]);
      distance = std::max(distance, std::abs(expected - (i + 0.5) / kSteps));
    }
    EXPECT_LT(distance, 1.63 / std::sqrt(static_cast<double>(kSteps)));
  }
}

}  // namespace
}  // namespace paceline
