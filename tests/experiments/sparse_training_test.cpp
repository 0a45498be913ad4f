// SPDX-License-Identifier: Apache-2.0
// The sparse model under backends that exchange its gradient as any other.
#include <gtest/gtest.h>

#include <cmath>

#include "common/data/sparse_dataset.h"
#include "experiments/backends.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

TEST(SparseTraining, EverySynchronousWayIsOneProcessWithTheGlobalBatch) {
  const auto train = make_sparse(600, {300, 10}, 3, Split::train);
  const auto test = make_sparse(100, {300, 10}, 3, Split::test);
  const auto weights = [&](const std::string& sync, int world, const auto& change) {
    Config config;
    config.sync = sync;
    config.model = "logistic";
    config.data.name = "sparse";
    config.world = world;
    config.train.batch = 12 / world;
    config.train.samples = 600;
    config.optimizer.lr = 1.0;
    config.comm.timeout = std::chrono::seconds(20);
    change(config);
    validate_run(config);
    return testing::run_thread_job(config, find_backend(sync), *train, *test).weights[0];
  };
  const auto plain = [](Config& /*config*/) {};
  const std::vector<float> single = weights("single", 1, plain);
  const auto expect_same = [&](const std::vector<float>& other, const char* what) {
    ASSERT_EQ(other.size(), single.size());
    for (std::size_t i = 0; i < single.size(); ++i) {
      ASSERT_NEAR(other[i], single[i], 1e-5) << what << ' ' << i;
    }
  };
  const std::vector<float> ring = weights("ring", 3, plain);
  expect_same(ring, "ring");
  EXPECT_EQ(weights("ps", 3, plain), ring);
  expect_same(weights("sharded", 2, plain), "sharded");
  expect_same(weights("ring", 2,
                      [](Config& config) {
                        config.train.batch = 3;
                        config.train.accumulate = 2;
                      }),
              "accumulation");
}

}  // namespace
}  // namespace paceline
