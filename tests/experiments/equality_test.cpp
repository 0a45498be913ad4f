// SPDX-License-Identifier: Apache-2.0
// "Equal until proven different": 50 steps of the MLP and the CNN under every synchronous way of
// synchronising, against each other and against one process that is fed the global batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "experiments/backends.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

using testing::run_thread_job;
using testing::ThreadJobResult;

constexpr int kSteps = 50;

/// 50 global batches, the last one uneven: one sample short of full.
Config base_config(const std::string& model, int world) {
  Config config;
  config.model = model;
  config.world = world;
  config.train.batch = 12 / world;
  config.train.samples = kSteps * 12 - 1;
  config.optimizer.lr = 0.02;
  config.bucket.size = 64 << 10;
  config.bucket.first_size = 16 << 10;
  config.comm.timeout = std::chrono::seconds(20);
  return config;
}

class Equality : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  Config config() const { return base_config(std::get<0>(GetParam()), std::get<1>(GetParam())); }

  ThreadJobResult run(const Config& config) {
    SCOPED_TRACE(config.sync);
    ThreadJobResult result = run_thread_job(config, find_backend(config.sync), *train_, *test_);
    EXPECT_EQ(result.losses.size(), static_cast<std::size_t>(kSteps));
    for (const auto& weights : result.weights) {
      EXPECT_EQ(weights, result.weights[0]) << "ranks disagree after the last step";
    }
    return result;
  }

  /// Largest difference relative to the largest weight.
  static double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0.0;
    double scale = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
      scale = std::max(scale, std::abs(static_cast<double>(a[i])));
    }
    return largest / scale;
  }

  std::unique_ptr<Dataset> train_ = make_synthetic(kSteps * 12, {28, 28, 1}, 10, 7, Split::train);
  std::unique_ptr<Dataset> test_ = make_synthetic(64, {28, 28, 1}, 10, 7, Split::test);
};

/// The ways of `config`'s world that are not the ring's: name and settings.
std::vector<std::pair<std::string, Config>> other_ways(const Config& config) {
  std::vector<std::pair<std::string, Config>> ways;
  for (const char* algorithm : {"tree", "halving_doubling"}) {
    Config way = config;
    way.sync = "ring";
    way.ring.algorithm = algorithm;
    ways.emplace_back(algorithm, way);
  }
  if (config.world == 4) {
    Config way = config;
    way.sync = "hierarchical";
    way.topology.ranks_per_node = 2;
    ways.emplace_back("hierarchical", way);
  }
  return ways;
}

TEST_P(Equality, PsIsTheRingBitForBitAndTheRestIsClose) {
  Config ring = config();
  ring.sync = "ring";
  const ThreadJobResult reference = run(ring);

  for (const int servers : {1, 2, 3}) {
    Config ps = config();
    ps.sync = "ps";
    ps.ps.servers = servers;
    const ThreadJobResult result = run(ps);
    EXPECT_EQ(result.weights[0], reference.weights[0]) << servers << " servers";
    EXPECT_EQ(result.losses, reference.losses) << servers << " servers";
  }
  Config ssp = config();
  ssp.sync = "ps";
  ssp.ps.consistency = "ssp";
  ssp.ps.staleness = 0;
  EXPECT_EQ(run(ssp).weights[0], reference.weights[0]) << "SSP with bound 0 is BSP";

  for (const auto& [name, way] : other_ways(config())) {
    EXPECT_LE(distance(reference.weights[0], run(way).weights[0]), 1e-5) << name;
  }
  Config single = config();
  single.sync = "single";
  single.world = 1;
  single.train.batch = 12;
  EXPECT_LE(distance(reference.weights[0], run(single).weights[0]), 1e-5) << "global batch";
}

TEST_P(Equality, ExactSumsAreTheSameBitsEverywhere) {
  Config ring = config();
  ring.sync = "ring";
  ring.sync_options.exact = true;
  const ThreadJobResult reference = run(ring);
  for (const int servers : {1, 2}) {
    Config ps = ring;
    ps.sync = "ps";
    ps.ps.servers = servers;
    EXPECT_EQ(run(ps).weights[0], reference.weights[0]) << servers << " servers";
  }
  for (auto& [name, way] : other_ways(ring)) {
    EXPECT_EQ(run(way).weights[0], reference.weights[0]) << name;
  }
}

TEST_P(Equality, AccumulationIsOneLargerBatchForTheBytesOfOneStep) {
  for (const char* sync : {"ring", "ps"}) {
    Config whole = config();
    whole.sync = sync;
    const ThreadJobResult reference = run(whole);
    Config accumulating = whole;
    accumulating.train.accumulate = whole.train.batch % 2 == 0 ? 2 : 3;
    accumulating.train.batch = whole.train.batch / accumulating.train.accumulate;
    const ThreadJobResult result = run(accumulating);
    EXPECT_LE(distance(reference.weights[0], result.weights[0]), 1e-5) << sync;
    EXPECT_EQ(result.outcome.samples, reference.outcome.samples) << sync;
    // What leaves after the last step's commit is not counted: one step's bytes of 50 in either.
    EXPECT_NEAR(result.outcome.bytes_sent, reference.outcome.bytes_sent,
                1.01 * std::max(result.outcome.bytes_sent, reference.outcome.bytes_sent) / kSteps)
        << sync;
  }
}

using ModelAndWorld = std::tuple<std::string, int>;
INSTANTIATE_TEST_SUITE_P(ModelsAndWorlds, Equality,
                         ::testing::Values(ModelAndWorld{"cnn", 2}, ModelAndWorld{"mlp", 1},
                                           ModelAndWorld{"mlp", 2}, ModelAndWorld{"cnn", 4},
                                           ModelAndWorld{"mlp", 3}, ModelAndWorld{"mlp", 4}),
                         [](const auto& tested) {
                           return fmt::format("{}_{}", std::get<0>(tested.param),
                                              std::get<1>(tested.param));
                         });

}  // namespace
}  // namespace paceline
