// SPDX-License-Identifier: Apache-2.0
// Models on sparse rows and on text under backends that exchange their gradients as any other.
#include <gtest/gtest.h>

#include <cmath>

#include "common/data/sparse_dataset.h"
#include "common/data/text_dataset.h"
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

/// Tied weights: their bucket waits for both layers that use them.
TEST(TextTraining, RingIsOneProcessWithTheGlobalBatchAndLearns) {
  std::string phrase;
  for (int i = 0; i < 80; ++i) phrase += "one model, many ways. ";
  const std::vector<std::uint8_t> bytes(phrase.begin(), phrase.end());
  const auto text = make_text_dataset(bytes, 16, "phrase");
  const auto run = [&](const std::string& sync, int world, int steps) {
    Config config;
    config.sync = sync;
    config.model = "gpt";
    config.gpt = {2, 2, 32};
    config.world = world;
    config.train.batch = 8 / world;
    config.train.samples = std::int64_t{8} * steps;
    config.optimizer.lr = 0.2;
    config.bucket.size = 32 << 10;
    config.bucket.first_size = 4 << 10;
    config.comm.timeout = std::chrono::seconds(20);
    return testing::run_thread_job(config, find_backend(sync), *text, *text);
  };
  const std::vector<float> expected = run("single", 1, 8).weights[0];
  const std::vector<float> ring = run("ring", 2, 8).weights[0];
  ASSERT_EQ(ring.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(ring[i], expected[i], 1e-5) << i;
  }
  const testing::ThreadJobResult single = run("single", 1, 150);
  EXPECT_GT(single.losses.front(), 5.0);  // ln 256 = 5.5
  EXPECT_LT(single.outcome.evaluations.back().loss, 2.0);
  EXPECT_GT(single.outcome.evaluations.back().accuracy, 0.4);
  EXPECT_LE(single.outcome.evaluations.back().accuracy, 1.0);
}

}  // namespace
}  // namespace paceline
