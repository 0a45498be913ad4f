// SPDX-License-Identifier: Apache-2.0
// Local SGD, DiLoCo, elastic averaging and gossip: by hand on two ranks, who meets whom, equality
// with ring, evaluations that leave training alone, checkpoints, refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "common/data/sampler.h"
#include "ring/gossip.h"
#include "ring/gossip_matching.h"
#include "ring/local_sgd.h"
#include "ring/ring_backend.h"
#include "tests/support/checkpoint.h"
#include "tests/support/replica_reference.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

using testing::check_replicas;
using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::known_initial;
using testing::run_backend;
using testing::run_thread_job;

/// Two ranks, two parameters in two buckets, plain SGD at rate 1/8.
ConformanceCase two_ranks(const std::string& sync, int steps) {
  ConformanceCase test;
  test.config.sync = sync;
  test.config.world = 2;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {1, 1};
  test.steps = steps;
  return test;
}

/// Rank 0 has one sample with gradient `first`, rank 1 three with the sum `second`, in every step.
/// Returns how far the shown weights moved.
std::array<double, 2> moved(const Backend& backend, const ConformanceCase& test,
                            std::array<float, 2> first, std::array<float, 2> second) {
  const ConformanceOutcome outcome = run_backend(backend, test, [&](ConformanceWorker& worker) {
    for (int t = 0; t < test.steps; ++t) {
      const bool zero = worker.rank == 0;
      testing::take_step(
          worker, {t, test.lr, zero ? 1 : 3, 4},
          [&](std::size_t j) { return zero ? first[j] : second[j]; }, [](Range) {});
    }
    worker.synchronizer.quiesce();
    return StepReport{};
  });
  testing::expect_no_errors(outcome);
  testing::expect_equal_weights(outcome);
  return {static_cast<double>(outcome.weights[0][0] - known_initial(0)),
          static_cast<double>(outcome.weights[0][1] - known_initial(1))};
}

TEST(LocalSgd, AveragesAreWeightedBySamples) {
  // Two steps move rank 0 by -(1, -2)/4 and rank 1 by -(3, 6)/3/4; a quarter and three quarters.
  ConformanceCase test = two_ranks("local", 2);
  test.config.local.steps = 2;
  const auto by = moved(local_backend(), test, {1, -2}, {3, 6});
  EXPECT_NEAR(by[0], -0.25, 1e-6);
  EXPECT_NEAR(by[1], -0.25, 1e-6);
}

TEST(LocalSgd, OuterStepByHand) {
  // One local step per round drifts by d = (1, 1)/8 on average. With rate 1/2 and momentum 1/2:
  // v = d, anchor -= (d + v/2)/2 = 0.75 d; then v = 1.5 d, anchor -= (d + v/2)/2 = 0.875 d.
  ConformanceCase test = two_ranks("local", 2);
  test.config.local = {1, "nesterov", 0.5, 0.5};
  const auto by = moved(local_backend(), test, {1, -2}, {3, 6});
  EXPECT_NEAR(by[0], -1.625 / 8, 1e-6);
  EXPECT_NEAR(by[1], -1.625 / 8, 1e-6);
}

TEST(ElasticAveraging, CenterByHand) {
  // Local steps of -1 and +3 with alpha 1/4, so beta 1/2. Exchange 1: x = (-0.75, 2.25), center
  // 0.5. Local: (-1.75, 5.25). Exchange 2: center 0.5 + (1.75 - 0.5)/2 = 1.125.
  ConformanceCase test = two_ranks("easgd", 2);
  test.config.easgd = {1, 0.25};
  const auto by = moved(easgd_backend(), test, {8, 0}, {-72, 0});
  EXPECT_NEAR(by[0], 1.125, 1e-6);
  EXPECT_NEAR(by[1], 0.0, 1e-6);
}

TEST(Gossip, PairAveragesByHand) {
  // Local steps of -1 and +3 on both ranks' average: step 1 leaves (-1, 3), step 2 their average
  // 1 and then (0, 4), whose mean is shown.
  const auto by = moved(gossip_backend(), two_ranks("gossip", 2), {8, 0}, {-72, 0});
  EXPECT_NEAR(by[0], 2.0, 1e-6);
  EXPECT_NEAR(by[1], 0.0, 1e-6);
}

// ---- Against the loops in double, beyond the standard sweep

ConformanceCase larger(const std::string& sync, int world) {
  ConformanceCase test = two_ranks(sync, 7);
  test.config.world = world;
  test.buckets = {3, 0, 257, 64};
  test.optimizer.momentum = 0.5F;
  test.optimizer.weight_decay = 0.0625F;
  return test;
}

TEST(LocalSgd, FollowsTheLoops) {
  ConformanceCase test = larger("local", 3);
  for (const std::int64_t steps : {1, 3, 100}) {
    test.config.local.steps = steps;
    const ConformanceOutcome outcome = check_replicas(local_backend(), test);
    EXPECT_EQ(outcome.staleness.max, std::min<std::int64_t>(steps, test.steps) - 1);
  }
  test.config.local = {2, "nesterov", 0.7, 0.9};
  check_replicas(local_backend(), test);
  test.config.sync_options.overlap = false;
  check_replicas(local_backend(), test);
}

TEST(ElasticAveraging, FollowsTheLoops) {
  ConformanceCase test = larger("easgd", 3);
  test.config.easgd.period = 2;
  check_replicas(easgd_backend(), test);
  test.config.easgd.alpha = 0.3;
  test.config.sync_options.overlap = false;
  check_replicas(easgd_backend(), test);
}

TEST(Gossip, FollowsTheLoops) {
  for (const int world : {4, 5}) {
    ConformanceCase test = larger("gossip", world);
    check_replicas(gossip_backend(), test);
    test.config.gossip.graph = "random";
    check_replicas(gossip_backend(), test);
    test.config.sync_options.overlap = false;
    check_replicas(gossip_backend(), test);
  }
}

TEST(LocalSgd, SendsEveryHSteps) {
  const auto bytes = [](const Backend& backend, std::int64_t local_steps) {
    ConformanceCase test = two_ranks(std::string(backend.name), 8);
    test.buckets = {100'000};
    test.config.local.steps = local_steps;
    return run_backend(backend, test,
                       [&](ConformanceWorker& worker) {
                         StepReport total;
                         for (int t = 0; t < test.steps; ++t) {
                           testing::merge(total,
                                          testing::take_step(
                                              worker, {t, test.lr, 1, 2},
                                              [](std::size_t) { return 1.0F; }, [](Range) {}));
                         }
                         worker.synchronizer.quiesce();
                         testing::merge(total, worker.synchronizer.commit());
                         return total;
                       })
        .bytes_sent;
  };
  const auto every = static_cast<double>(bytes(ring_backend(), 0));
  EXPECT_GT(every, 8 * 400'000);
  EXPECT_NEAR(static_cast<double>(bytes(local_backend(), 1)) / every, 1.0, 0.001);
  // Averages after steps 3 and 6, and of what the last two steps changed.
  EXPECT_NEAR(static_cast<double>(bytes(local_backend(), 3)) / every, 3.0 / 8, 0.001);
}

// ---- Partners

TEST(GossipPartners, AreAMatchingThatCoversTheRing) {
  for (int world = 2; world <= 9; ++world) {
    std::set<std::pair<int, int>> edges;
    std::set<int> idle;
    for (std::int64_t t = 0; t < world; ++t) {
      int alone = 0;
      for (int r = 0; r < world; ++r) {
        const auto peer = gossip_partner(GossipGraph::ring, 1, t, r, world);
        if (!peer) {
          ++alone;
          idle.insert(r);
          continue;
        }
        EXPECT_EQ(gossip_partner(GossipGraph::ring, 1, t, *peer, world), r);
        EXPECT_TRUE((r + 1) % world == *peer || (*peer + 1) % world == r);
        edges.emplace(std::min(r, *peer), std::max(r, *peer));
      }
      EXPECT_EQ(alone, world % 2);
    }
    EXPECT_EQ(edges.size(), world == 2 ? 1U : static_cast<std::size_t>(world));
    EXPECT_EQ(idle.size(), world % 2 == 0 ? 0U : static_cast<std::size_t>(world));
  }
}

TEST(GossipPartners, RandomOnesAreASeededMatchingThatMeetsEverybodyEquallyOften) {
  constexpr int kSteps = 2000;
  for (const int world : {2, 5, 8}) {
    std::map<int, int> met;  // by rank 0
    int other_seed = 0;
    for (std::int64_t t = 0; t < kSteps; ++t) {
      int alone = 0;
      for (int r = 0; r < world; ++r) {
        const auto peer = gossip_partner(GossipGraph::random, 7, t, r, world);
        alone += peer ? 0 : 1;
        if (peer) {
          EXPECT_NE(*peer, r);
          EXPECT_EQ(gossip_partner(GossipGraph::random, 7, t, *peer, world), r);
        }
      }
      EXPECT_EQ(alone, world % 2);
      const auto mine = gossip_partner(GossipGraph::random, 7, t, 0, world);
      ++met[mine.value_or(0)];
      other_seed += mine == gossip_partner(GossipGraph::random, 8, t, 0, world) ? 1 : 0;
    }
    const int choices = world % 2 == 0 ? world - 1 : world;  // idling is one of them
    ASSERT_EQ(met.size(), static_cast<std::size_t>(choices));
    const double each = static_cast<double>(kSteps) / choices;
    for (const auto& [peer, times] : met) {
      EXPECT_NEAR(times, each, 5 * std::sqrt(each)) << peer;
    }
    if (world > 2) {
      EXPECT_NEAR(other_seed, each, 5 * std::sqrt(each));
    }
  }
}

// ---- Whole jobs

Config job(const std::string& sync, int world) {
  Config config;
  config.sync = sync;
  config.model = "softmax";
  config.world = world;
  config.train.batch = 4;
  config.train.samples = 12L * 4 * world;
  config.optimizer.momentum = 0.0;
  config.bucket.first_size = 40;
  config.comm.timeout = std::chrono::seconds(20);
  return config;
}

class ReplicaJob : public ::testing::Test {
 protected:
  std::vector<float> weights_of(const Config& config, const Backend& backend) {
    return run_thread_job(config, backend, *train_, *test_).weights.front();
  }
  std::unique_ptr<Dataset> train_ = make_synthetic(120, {8, 8, 1}, 10, 3, Split::train);
  std::unique_ptr<Dataset> test_ = make_synthetic(24, {8, 8, 1}, 10, 3, Split::test);
};

TEST_F(ReplicaJob, LocalSgdThatAveragesEveryStepFollowsRing) {
  Config config = job("local", 3);
  config.local.steps = 1;
  config.data.shares = "2,1,1";
  config.optimizer.weight_decay = 0.01;
  const std::vector<float> local = weights_of(config, local_backend());
  config.sync = "ring";
  const std::vector<float> ring = weights_of(config, ring_backend());
  ASSERT_EQ(local.size(), ring.size());
  for (std::size_t i = 0; i < ring.size(); ++i) {
    ASSERT_NEAR(local[i], ring[i], 1e-6) << i;
  }
}

TEST_F(ReplicaJob, EvaluationsDoNotAlterTraining) {
  const auto check = [&](Config config, const Backend& backend) {
    SCOPED_TRACE(config.sync);
    config.optimizer.momentum = 0.5;
    const std::vector<float> without = weights_of(config, backend);
    config.train.eval_every = 4L * config.world;
    EXPECT_EQ(weights_of(config, backend), without);
  };
  Config local = job("local", 3);
  local.local = {5, "nesterov", 0.7, 0.9};
  check(local, local_backend());
  check(job("easgd", 3), easgd_backend());
  check(job("gossip", 3), gossip_backend());
}

// ---- Checkpoints

TEST(ReplicaCheckpoint, TrainingGoesOnWhereItWas) {
  const auto check = [](const Backend& backend, ConformanceCase test) {
    SCOPED_TRACE(backend.name);
    constexpr int kSaved = 3;  // between two exchanges
    std::vector<testing::Checkpoint> checkpoints(static_cast<std::size_t>(test.config.world));
    const auto run = [&](int from, bool load) {
      return run_backend(backend, test, [&, from, load](ConformanceWorker& worker) {
        testing::Checkpoint& checkpoint = checkpoints[static_cast<std::size_t>(worker.rank)];
        if (load) {
          worker.synchronizer.load(checkpoint);
        }
        for (int t = from; t < test.steps; ++t) {
          testing::take_step(
              worker, {t, test.lr, 1 + worker.rank, 6},
              [&](std::size_t j) { return testing::known_gradient(j, worker.rank, t); },
              [](Range) {});
          if (t == kSaved - 1) {
            worker.synchronizer.quiesce();
            worker.synchronizer.save(checkpoint);
          }
        }
        worker.synchronizer.quiesce();
        return StepReport{};
      });
    };
    const ConformanceOutcome whole = run(0, false);
    const ConformanceOutcome resumed = run(kSaved, true);
    testing::expect_no_errors(whole);
    testing::expect_no_errors(resumed);
    EXPECT_EQ(whole.weights, resumed.weights);
  };
  ConformanceCase local = larger("local", 3);
  local.config.local = {2, "nesterov", 0.7, 0.9};
  check(local_backend(), local);
  ConformanceCase easgd = larger("easgd", 3);
  easgd.config.easgd.period = 2;
  check(easgd_backend(), easgd);
  check(gossip_backend(), larger("gossip", 3));
}

// ---- Refusals

void expect_refused(const Backend& backend, const Config& config, const std::string& why) {
  try {
    backend.validate(config);
    ADD_FAILURE() << backend.name << " accepts what it should not: " << why;
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(ReplicaOptions, WhatTheyCannotDoIsRefusedByName) {
  for (const Backend& backend : {local_backend(), easgd_backend(), gossip_backend()}) {
    Config config = job(std::string(backend.name), 2);
    backend.validate(config);
    config.compress.method = "topk";
    expect_refused(backend, config, "compress = topk");
    config = job(std::string(backend.name), 2);
    config.sync_options.wire = "fp16";
    expect_refused(backend, config, "sync.wire = fp16");
    config = job(std::string(backend.name), 2);
    config.sync_options.exact = true;
    expect_refused(backend, config, "sync.exact = true");
    config = job(std::string(backend.name), 2);
    config.optimizer.name = "onebit_adam";
    expect_refused(backend, config, "optimizer.name = onebit_adam");
    config = job(std::string(backend.name), 2);
    config.ring.algorithm = "hierarchical";
    expect_refused(backend, config, "ring.algorithm = hierarchical");
  }
  expect_refused(gossip_backend(), job("gossip", 1), "gossip with one rank");
  Config easgd = job("easgd", 4);
  easgd.easgd.alpha = 0.5;
  expect_refused(easgd_backend(), easgd, "easgd.alpha = 0.5 with world = 4");
}

}  // namespace
}  // namespace paceline
