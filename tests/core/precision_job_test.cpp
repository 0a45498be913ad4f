// SPDX-License-Identifier: Apache-2.0
// Whole jobs below fp32: they learn what fp32 learns, and steps whose gradients overflow are left
// out on every rank.
#include <gtest/gtest.h>

#include <cmath>

#include "experiments/backends.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

Config job_config(const char* compute) {
  Config config;
  config.sync = "ring";
  config.model = "mlp";
  config.world = 2;
  config.train.batch = 16;
  config.train.samples = 40 * 32;
  config.optimizer.lr = 0.02;
  config.precision.compute = compute;
  config.comm.timeout = std::chrono::seconds(20);
  return config;
}

testing::ThreadJobResult run(const Config& config) {
  const auto train_set = make_synthetic(1280, {8, 8, 1}, 10, 7, Split::train);
  const auto test_set = make_synthetic(500, {8, 8, 1}, 10, 7, Split::test);
  auto result = testing::run_thread_job(config, find_backend(config.sync), *train_set, *test_set);
  EXPECT_EQ(result.weights[1], result.weights[0]);
  return result;
}

double accuracy(const testing::ThreadJobResult& result) {
  return result.outcome.evaluations.back().accuracy;
}

TEST(PrecisionJob, Bf16AndFp16LearnWhatFp32Does) {
  const auto fp32 = run(job_config("fp32"));
  EXPECT_GT(accuracy(fp32), 0.5);
  const auto bf16 = run(job_config("bf16"));
  EXPECT_NEAR(accuracy(bf16), accuracy(fp32), 0.04);
  Config half = job_config("fp16");
  half.precision.initial_scale = 1024.0;
  const auto fp16 = run(half);
  EXPECT_EQ(fp16.outcome.skipped, 0);
  EXPECT_NEAR(accuracy(fp16), accuracy(fp32), 0.04);
  EXPECT_NE(bf16.weights[0], fp32.weights[0]);
  EXPECT_NE(fp16.weights[0], fp32.weights[0]);
}

/// Scales at which every gradient overflows cost a few steps, not the weights.
TEST(PrecisionJob, OverflowingStepsAreSkippedUntilTheScaleFits) {
  Config config = job_config("fp16");
  config.sync = "ps";
  config.precision.initial_scale = 0x1p24;
  const auto result = run(config);
  EXPECT_GT(result.outcome.skipped, 3);
  EXPECT_LT(result.outcome.skipped, 35);
  for (const float weight : result.weights[0]) {
    ASSERT_TRUE(std::isfinite(weight));
  }
  for (const double loss : result.losses) {
    EXPECT_TRUE(std::isfinite(loss));
  }
  EXPECT_LT(result.losses.back(), result.losses.front());
}

TEST(PrecisionJob, MicroBatchesAreUnscaledOnce) {
  Config whole = job_config("fp16");
  whole.train.samples = 4 * 32;
  whole.precision.loss_scale = "fixed";
  whole.precision.initial_scale = 64.0;
  Config parts = whole;
  parts.train.batch = 4;
  parts.train.accumulate = 4;
  const auto a = run(whole);
  const auto b = run(parts);
  double worst = 0.0;
  for (std::size_t i = 0; i < a.weights[0].size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a.weights[0][i] - b.weights[0][i])));
  }
  EXPECT_LE(worst, 1e-3);
}

}  // namespace
}  // namespace paceline
