// SPDX-License-Identifier: Apache-2.0
// Asynchronous gossip: by hand on two ranks, sums that averagings leave alone, ranks that nobody
// waits for, who calls whom.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <thread>

#include "ring/gossip.h"
#include "ring/gossip_matching.h"
#include "tests/support/backend_conformance.h"
#include "tests/support/checkpoint.h"

namespace paceline {
namespace {

using testing::check_asynchronous;
using testing::conformance_cases;
using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::known_initial;
using testing::run_backend;
using testing::take_step;

ConformanceCase ranks(int world, bool overlap = false) {
  ConformanceCase test;
  test.config.sync = "gossip";
  test.config.gossip.mode = "asynchronous";
  test.config.world = world;
  test.config.sync_options.overlap = overlap;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {1, 1};
  return test;
}

/// A step with gradient `g` of weight 0 that reads `expected` more than the initial weight there;
/// `compute` runs between reading and updating.
template <typename Compute>
StepReport step(ConformanceWorker& worker, int t, float g, float expected, Compute compute) {
  return take_step(
      worker, {t, 0.125F, 1, 2}, [&](std::size_t j) { return j == 0 ? g : 0.0F; },
      [&](Range range) {
        if (range.begin == 0) {
          EXPECT_FLOAT_EQ(worker.view.weights[0] - known_initial(0), expected)
              << "rank " << worker.rank << ", step " << t;
          compute();
        }
      });
}

StepReport step(ConformanceWorker& worker, int t, float g, float expected) {
  return step(worker, t, g, expected, [] {});
}

/// The mean of all replicas, as both ranks see it.
void expect_shown(ConformanceWorker& worker, float expected) {
  worker.synchronizer.quiesce();
  EXPECT_FLOAT_EQ(worker.view.weights[0] - known_initial(0), expected) << worker.rank;
  EXPECT_FLOAT_EQ(worker.view.weights[1], known_initial(1));
}

TEST(AsyncGossip, ByHandOnTwoRanks) {
  std::vector<testing::Checkpoint> saved(2);
  const ConformanceOutcome outcome =
      run_backend(gossip_backend(), ranks(2), [&](ConformanceWorker& worker) {
        const auto meet = [&] { worker.workers.barrier(); };
        if (worker.rank == 0) {
          meet();                                             // rank 1 computes
          EXPECT_EQ(step(worker, 0, 8, 0).staleness.max, 0);  // -1, then (-1 + 0)/2
          meet();
          meet();                                        // rank 1 moved by 3: (-0.5, 2.5)
          static_cast<void>(step(worker, 1, 8, -0.5F));  // -1.5, then (-1.5 + 2.5)/2
          meet();
          meet();
        } else {
          const StepReport report = step(worker, 0, -24, 0, [&] {
            meet();
            meet();
          });
          EXPECT_EQ(report.staleness.max, 1);
          meet();
          meet();
          EXPECT_EQ(step(worker, 1, -32, 0.5F).staleness.max, 0);  // (0.5, 4.5)
          meet();
        }
        expect_shown(worker, 2.5F);
        worker.synchronizer.save(saved[static_cast<std::size_t>(worker.rank)]);
        static_cast<void>(step(worker, 2, 0, worker.rank == 0 ? 0.5F : 4.5F, meet));
        expect_shown(worker, 2.5F);
        return StepReport{};
      });
  testing::expect_no_errors(outcome);
  const ConformanceOutcome resumed =
      run_backend(gossip_backend(), ranks(2), [&](ConformanceWorker& worker) {
        worker.synchronizer.load(saved[static_cast<std::size_t>(worker.rank)]);
        static_cast<void>(
            step(worker, 2, 0, worker.rank == 0 ? 0.5F : 4.5F, [&] { worker.workers.barrier(); }));
        expect_shown(worker, 2.5F);
        return StepReport{};
      });
  testing::expect_no_errors(resumed);
}

TEST(AsyncGossip, AnUpdateThatIsNotFiniteIsLeftOutAndNotCounted) {
  ConformanceCase test = ranks(2, true);
  test.optimizer.skip_nonfinite = true;
  const ConformanceOutcome outcome =
      run_backend(gossip_backend(), test, [](ConformanceWorker& worker) {
        StepReport total;
        for (int t = 0; t < 4; ++t) {
          const bool bad = worker.rank == 1 && t == 2;
          const StepReport report = take_step(
              worker, {t, 0.125F, 1, 2},
              [&](std::size_t) { return bad ? std::numeric_limits<float>::infinity() : 8.0F; },
              [](Range) {});
          EXPECT_EQ(report.skipped, bad ? 1 : 0);
          testing::merge(total, report);
        }
        worker.synchronizer.quiesce();
        EXPECT_FLOAT_EQ(worker.view.weights[0] - known_initial(0), -3.5F);
        return total;
      });
  testing::expect_no_errors(outcome);
  EXPECT_EQ(outcome.staleness.updates, 7);
}

// ---- The sum over ranks

#ifdef __SANITIZE_THREAD__
constexpr int kLargest = 3;
constexpr std::size_t kMostElements = 20'000;
#else
constexpr int kLargest = 5;
constexpr std::size_t kMostElements = 10'000'000;
#endif

TEST(AsyncGossip, AppliesEveryUpdateOnceAndAveragingsKeepTheirMean) {
  Config config = ranks(2, true).config;
  int number = 0;
  for (ConformanceCase& test : conformance_cases(config, 2, kLargest)) {
    if (BucketPlan(test.buckets).elements() > kMostElements) {
      continue;
    }
    test.config.gossip.graph = ++number % 2 == 0 ? "random" : "ring";
    test.config.sync_options.overlap = number % 3 != 0;
    const ConformanceOutcome outcome =
        check_asynchronous(gossip_backend(), test, 1.0 / test.config.world);
    EXPECT_EQ(outcome.staleness.updates, test.config.world * test.steps);
  }
}

// ---- Nobody waits for a slow rank

template <typename Done>
void wait_until(ConformanceWorker& worker, Done done) {
  while (!done()) {
    worker.abort.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Rank `slow` computes one step until all others have done theirs, 20 each; every step of a rank
/// that calls ends with an averaging, also those with the slow rank.
ConformanceOutcome with_slow_rank(int world, int slow) {
  constexpr int kSteps = 20;
  std::atomic<int> busy{world - 1};
  std::atomic<bool> has_read{false};
  const ConformanceOutcome outcome =
      run_backend(gossip_backend(), ranks(world), [&](ConformanceWorker& worker) {
        StepReport total;
        const auto gradient = [](std::size_t) { return 1.0F; };
        if (worker.rank == slow) {
          total = take_step(worker, {0, 0.125F, 1, world}, gradient, [&](Range range) {
            if (range.begin == 0) {
              has_read = true;
              wait_until(worker, [&] { return busy.load() == 0; });
            }
          });
        } else {
          wait_until(worker, [&] { return has_read.load(); });
          for (int t = 0; t < kSteps; ++t) {
            testing::merge(total, take_step(worker, {t, 0.125F, 1, world}, gradient, [](Range) {}));
          }
          --busy;
        }
        worker.synchronizer.quiesce();
        return total;
      });
  testing::expect_no_errors(outcome);
  testing::expect_equal_weights(outcome);
  const int updates = (world - 1) * kSteps + 1;
  EXPECT_EQ(outcome.staleness.updates, updates);
  EXPECT_NEAR(static_cast<double>(outcome.weights[0][1] - known_initial(1)),
              -0.125 * updates / world, 1e-5);
  return outcome;
}

TEST(AsyncGossip, ASlowRankThatAnswersDelaysNobody) {
  EXPECT_EQ(with_slow_rank(2, 1).staleness.max, 20);
  EXPECT_EQ(with_slow_rank(3, 1).staleness.max, 40);  // ranks 0 and 2 have no other partner
  EXPECT_GT(with_slow_rank(4, 3).staleness.max, 0);
}

TEST(AsyncGossip, ASlowRankThatCallsDelaysNobody) {
  with_slow_rank(2, 0);
  with_slow_rank(4, 2);
}

// ---- Who calls whom

TEST(GossipCalls, GraphsAreConnectedAndJoinRanksThatCallWithRanksThatAnswer) {
  for (const GossipGraph graph : {GossipGraph::ring, GossipGraph::random}) {
    for (int world = 2; world <= 9; ++world) {
      std::vector<int> reached{0};
      std::size_t edges = 0;
      for (std::size_t next = 0; next < reached.size(); ++next) {
        const std::vector<int> neighbours = gossip_neighbours(graph, reached[next], world);
        edges += neighbours.size();
        for (const int other : neighbours) {
          EXPECT_NE(gossip_calls(other), gossip_calls(reached[next]));
          EXPECT_EQ(std::ranges::count(gossip_neighbours(graph, other, world), reached[next]), 1);
          if (std::ranges::find(reached, other) == reached.end()) {
            reached.push_back(other);
          }
        }
      }
      EXPECT_EQ(reached.size(), static_cast<std::size_t>(world));
      const int ring = world == 2 ? 1 : world % 2 == 0 ? world : world - 1;
      const int all = (world / 2) * ((world + 1) / 2);
      EXPECT_EQ(edges / 2, static_cast<std::size_t>(graph == GossipGraph::ring ? ring : all));
    }
  }
}

TEST(GossipCalls, PartnersAreSeededAndEquallyLikely) {
  constexpr int kCalls = 3000;
  for (const auto& [graph, world] : {std::pair{GossipGraph::ring, 6}, {GossipGraph::random, 7}}) {
    const std::vector<int> neighbours = gossip_neighbours(graph, 2, world);
    std::map<int, int> met;
    int as_other_rank = 0;
    for (std::int64_t call = 0; call < kCalls; ++call) {
      const int callee = gossip_callee(graph, 7, call, 2, world);
      ++met[callee];
      as_other_rank += callee == gossip_callee(graph, 7, call, 4, world) ? 1 : 0;
    }
    EXPECT_EQ(met.size(), neighbours.size());
    const double each = static_cast<double>(kCalls) / static_cast<double>(neighbours.size());
    for (const int callee : neighbours) {
      EXPECT_NEAR(met[callee], each, 5 * std::sqrt(each)) << callee;
    }
    EXPECT_LT(as_other_rank, kCalls);
  }
}

}  // namespace
}  // namespace paceline
