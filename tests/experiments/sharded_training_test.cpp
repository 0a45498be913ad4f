// SPDX-License-Identifier: Apache-2.0
// sync=sharded follows sync=ring through the trainer, rule by rule.
#include <gtest/gtest.h>

#include "common/config/config_file.h"
#include "experiments/backends.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

using testing::run_thread_job;
using testing::ThreadJobResult;

ThreadJobResult trained(const std::string& sync, const std::vector<std::string>& settings) {
  Config config;
  config.sync = sync;
  config.model = "mlp";
  config.world = 3;
  config.train.batch = 4;
  config.train.samples = 72;
  config.optimizer.lr = 0.02;
  config.optimizer.weight_decay = 0.01;
  config.bucket.size = 64 << 10;
  config.comm.timeout = std::chrono::seconds(20);
  apply_overrides(config, settings);
  validate_run(config);
  const auto train_set = make_synthetic(96, {8, 8, 1}, 10, 3, Split::train);
  const auto test_set = make_synthetic(12, {8, 8, 1}, 10, 3, Split::test);
  return run_thread_job(config, find_backend(sync), *train_set, *test_set);
}

class ShardedTraining : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(ShardedTraining, HasTheRingsBits) {
  EXPECT_EQ(trained("sharded", GetParam()).weights, trained("ring", GetParam()).weights);
}

INSTANTIATE_TEST_SUITE_P(
    ElementWise, ShardedTraining,
    ::testing::Values(std::vector<std::string>{"optimizer.name=sgd"},
                      std::vector<std::string>{"optimizer.name=adam", "optimizer.lr=0.001"},
                      std::vector<std::string>{"train.accumulate=2", "data.shares=2,1,1",
                                               "sync.overlap=false"},
                      std::vector<std::string>{"sync.exact=true", "sync.priority=false"}));

class ShardedNorms : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(ShardedNorms, FollowTheRingToRounding) {
  const ThreadJobResult sharded = trained("sharded", GetParam());
  const ThreadJobResult ring = trained("ring", GetParam());
  EXPECT_EQ(sharded.weights[1], sharded.weights[0]);
  EXPECT_EQ(sharded.weights[2], sharded.weights[0]);
  EXPECT_NE(ring.weights, trained("ring", {}).weights);
  for (std::size_t j = 0; j < ring.weights[0].size(); ++j) {
    ASSERT_NEAR(sharded.weights[0][j], ring.weights[0][j], 1e-6) << "weight " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, ShardedNorms,
    ::testing::Values(std::vector<std::string>{"optimizer.clip_norm=0.1"},
                      std::vector<std::string>{"optimizer.name=lars", "optimizer.lr=1"},
                      std::vector<std::string>{"optimizer.name=lamb", "optimizer.lr=0.01"},
                      std::vector<std::string>{"optimizer.name=lars", "optimizer.lr=1",
                                               "optimizer.clip_norm=0.1"}));

}  // namespace
}  // namespace paceline
