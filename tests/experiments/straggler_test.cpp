// SPDX-License-Identifier: Apache-2.0
// fault.slow_rank and fault.jitter through the trainer: they change when things happen, not what.
#include <gtest/gtest.h>

#include "experiments/backends.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

using testing::run_thread_job;
using testing::ThreadJobResult;

ThreadJobResult straggling_job(const std::string& sync, Nanoseconds emulate,
                               const std::string& slow_rank, const std::string& jitter) {
  Config config;
  config.sync = sync;
  config.model = "softmax";
  config.bucket.first_size = 40;  // the bias alone
  config.world = 3;
  config.topology.ranks_per_node = sync == "hierarchical" ? 2 : 0;
  config.train.batch = 4;
  config.train.samples = 96;
  config.optimizer.lr = 0.02;
  config.compute.emulate = emulate;
  config.fault.slow_rank = slow_rank;
  config.fault.jitter = jitter;
  config.comm.timeout = std::chrono::seconds(20);
  validate_run(config);
  const auto train_set = make_synthetic(96, {8, 8, 1}, 10, 3, Split::train);
  const auto test_set = make_synthetic(12, {8, 8, 1}, 10, 3, Split::test);
  return run_thread_job(config, find_backend(sync), *train_set, *test_set);
}

class Straggler : public ::testing::TestWithParam<std::string> {};

TEST_P(Straggler, IsNamedAndTheWeightsStayTheSame) {
  const auto even = straggling_job(GetParam(), Nanoseconds(0), "", "none");
  const auto slow = straggling_job(GetParam(), std::chrono::milliseconds(3), "2:8x", "uniform:0.1");
  EXPECT_EQ(slow.weights, even.weights);
  EXPECT_EQ(slow.outcome.waited_for, 2);
  EXPECT_GT(slow.outcome.waited_for_share, 0.0);
  EXPECT_LE(slow.outcome.waited_for_share, 1.0 + 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Collectives, Straggler,
                         ::testing::Values("ring", "sharded", "hierarchical"),
                         [](const auto& each) { return each.param; });

TEST(Straggler, WithoutAnEmulatedDeviceStretchesItsOwnTime) {
  const auto slow = straggling_job("ring", Nanoseconds(0), "1:100x", "none");
  EXPECT_EQ(slow.outcome.waited_for, 1);
}

TEST(Straggler, OfAParameterServerIsNotNamed) {
  EXPECT_EQ(straggling_job("ps", Nanoseconds(0), "1:4x", "exponential:0.2").outcome.waited_for, -1);
}

}  // namespace
}  // namespace paceline
