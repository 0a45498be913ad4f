// SPDX-License-Identifier: Apache-2.0
// Norms in whole jobs: statistics over ranks, micro-batches, and evaluations that leave training
// alone.
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/core/buffer_guard.h"
#include "experiments/backends.h"
#include "tests/core/inputs.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

Config job_config(const char* norm, int world) {
  Config config;
  config.sync = world == 1 ? "single" : "ring";
  config.model = "mlp";
  config.world = world;
  config.norm.kind = norm;
  config.train.batch = 12 / world;
  config.train.samples = 97;  // the last step has one sample
  config.optimizer.lr = 0.02;
  config.comm.timeout = std::chrono::seconds(20);
  return config;
}

testing::ThreadJobResult run(const Config& config) {
  const auto train_set = make_synthetic(200, {8, 8, 1}, 10, 7, Split::train);
  const auto test_set = make_synthetic(64, {8, 8, 1}, 10, 7, Split::test);
  return testing::run_thread_job(config, find_backend(config.sync), *train_set, *test_set);
}

TEST(NormJob, SyncBatchNormOverThreeRanksIsOneProcessWithTheGlobalBatch) {
  const auto single = run(job_config("batch", 1));
  const auto expected = test::widen(single.weights[0]);
  const auto ring = run(job_config("sync_batch", 3));
  EXPECT_LE(test::relative_error(ring.weights[0], expected), 1e-4);
  EXPECT_NEAR(ring.outcome.evaluations[0].loss, single.outcome.evaluations[0].loss, 1e-4);
  EXPECT_GT(test::relative_error(run(job_config("batch", 3)).weights[0], expected), 1e-3);
}

/// Every rank makes the same number of calls although the last step has one sample in all.
TEST(NormJob, SyncBatchNormTakesMicroBatches) {
  Config config = job_config("sync_batch", 3);
  config.train.batch = 2;
  config.train.accumulate = 2;
  const auto result = run(config);
  EXPECT_EQ(result.weights[1], result.weights[0]);
  EXPECT_EQ(result.outcome.samples, 97);
}

TEST(NormJob, EvaluationsLeaveTrainingAlone) {
  Config config = job_config("batch", 3);
  const auto once = run(config);
  config.train.eval_every = 12;
  const auto often = run(config);
  EXPECT_GT(often.outcome.evaluations.size(), 5U);
  EXPECT_EQ(often.weights, once.weights);
  EXPECT_EQ(often.outcome.evaluations.back().loss, once.outcome.evaluations.back().loss);
}

TEST(NormJob, ABatchOfOneTrains) {
  for (const char* norm : {"batch", "group", "layer", "sync_batch"}) {
    Config config = job_config(norm, 3);
    config.train.batch = 1;
    config.train.samples = 9;
    EXPECT_EQ(run(config).losses.size(), 3U) << norm;
  }
}

TEST(BufferGuard, LendsRankZerosStatisticsAndPutsTheOwnBack) {
  ModelOptions options;
  options.norm.kind = "batch";
  AbortToken abort;
  auto workers = make_thread_communicators(3, 20'000'000'000, abort);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto model = make_model("mlp", {1, 1, 3}, 2, options);
      const auto mine = static_cast<float>(rank + 5);
      std::ranges::fill(model->buffers(), mine);
      {
        const BufferGuard guard(*model);
        guard.take_from_rank0(*workers[static_cast<std::size_t>(rank)]);
        EXPECT_TRUE(std::ranges::all_of(model->buffers(), [](float v) { return v == 5.0F; }));
      }
      EXPECT_TRUE(std::ranges::all_of(model->buffers(), [&](float v) { return v == mine; }));
      EXPECT_EQ(model->buffers().size(), 2U * (512 + 512));
    });
  }
}

}  // namespace
}  // namespace paceline
