// SPDX-License-Identifier: Apache-2.0
// Every algorithm at every world size 1..64, checked without I/O.
#include "ring/schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "common/base/error.h"
#include "common/sync/reduction_order.h"
#include "ring/schedule_check.h"

namespace paceline {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr int kLargestWorld = 24;  // the cost grows with the cube
#else
constexpr int kLargestWorld = 64;
#endif
constexpr int kLargestOneshot = 16;

std::vector<Schedule> build_all(ScheduleRequest request) {
  std::vector<Schedule> schedules;
  for (request.rank = 0; request.rank < request.world; ++request.rank) {
    schedules.push_back(build_schedule(request));
  }
  return schedules;
}

std::vector<std::size_t> counts_for(int world) {
  const auto n = static_cast<std::size_t>(world);
  const std::set<std::size_t> counts{0, 1, 3, n - 1, n, n + 1, 2 * n + 1, 131};
  return {counts.begin(), counts.end()};
}

class EveryAlgorithm : public testing::TestWithParam<Algorithm> {
 protected:
  static int largest_world() {
    return GetParam() == Algorithm::oneshot ? kLargestOneshot : kLargestWorld;
  }
  /// The topologies to try at a world size: none but for hierarchical.
  static std::vector<Topology> topologies(int world) {
    if (GetParam() != Algorithm::hierarchical) {
      return {Topology(world, 0, 0)};
    }
    std::vector<Topology> result;
    for (const int ranks_per_node : {2, 3, 8}) {
      result.emplace_back(world, ranks_per_node, 0);
    }
    return result;
  }
};

TEST_P(EveryAlgorithm, AllreducesAtEveryWorldSize) {
  for (int world = 1; world <= largest_world(); ++world) {
    for (const std::size_t count : counts_for(world)) {
      for (const std::size_t piece : {std::size_t{0}, std::size_t{2}}) {
        for (const Topology& topology : topologies(world)) {
          const auto schedules =
              build_all({CollectiveKind::allreduce, GetParam(), 0, world, count, piece, &topology});
          ASSERT_EQ(check_schedules(schedules, CollectiveKind::allreduce), "")
              << fmt::format("world {} count {} piece {} ranks per node {}", world, count, piece,
                             topology.ranks_per_node());
        }
      }
    }
  }
}

TEST_P(EveryAlgorithm, RespectsThePieceSize) {
  const Topology topology(6, 2, 0);
  for (const Schedule& schedule :
       build_all({CollectiveKind::allreduce, GetParam(), 0, 6, 1001, 7, &topology})) {
    for (const Operation& operation : schedule.operations) {
      EXPECT_LE(operation.range.size(), 7U);
    }
  }
}

/// The reference fold of common/sync/reduction_order.h.
std::vector<float> fold_in_ring_order(const std::vector<std::vector<float>>& inputs) {
  const auto world = static_cast<int>(inputs.size());
  const std::size_t count = inputs.front().size();
  std::vector<float> sum(count);
  for (int c = 0; c < world; ++c) {
    const Range chunk = ring_chunk(count, world, c);
    for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
      sum[i] = inputs[static_cast<std::size_t>(ring_summand(world, c, 0))][i];
      for (int k = 1; k < world; ++k) {
        sum[i] = sum[i] + inputs[static_cast<std::size_t>(ring_summand(world, c, k))][i];
      }
    }
  }
  return sum;
}

/// Floats of very different magnitude, so that another order gives other bits.
std::vector<std::vector<float>> awkward_inputs(int world, std::size_t count) {
  std::vector<std::vector<float>> inputs(static_cast<std::size_t>(world));
  std::uint64_t state = 12345;
  for (auto& input : inputs) {
    for (std::size_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const float mantissa = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31F;
      input.push_back(mantissa * static_cast<float>(1U << ((state >> 20) % 24)));
    }
  }
  return inputs;
}

std::vector<std::vector<float>> run(const std::vector<Schedule>& schedules,
                                    std::vector<std::vector<float>> memory) {
  for (std::size_t r = 0; r < schedules.size(); ++r) {
    memory[r].resize(schedules[r].count + schedules[r].scratch, -1.0F);
  }
  EXPECT_EQ(run_in_memory<float>(schedules, memory), "");
  for (std::size_t r = 0; r < schedules.size(); ++r) {
    memory[r].resize(schedules[r].count);
  }
  return memory;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(EveryAlgorithm, SumsInRingOrderWhereItSaysSo) {
  for (int world = 1; world <= largest_world(); ++world) {
    const std::size_t count = 517;
    const Topology topology(world, 2, 0);
    const auto inputs = awkward_inputs(world, count);
    const auto reference = fold_in_ring_order(inputs);
    const auto results = run(
        build_all({CollectiveKind::allreduce, GetParam(), 0, world, count, 13, &topology}), inputs);
    for (const auto& result : results) {
      ASSERT_TRUE(same_bits(result, results.front())) << "ranks differ at world " << world;
    }
    if (keeps_ring_order(GetParam(), world)) {
      ASSERT_TRUE(same_bits(results.front(), reference)) << "world " << world;
    } else if (world > 4) {
      EXPECT_FALSE(same_bits(results.front(), reference))
          << "world " << world << ": the inputs do not tell orders apart";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm,
                         testing::Values(Algorithm::ring, Algorithm::direct, Algorithm::oneshot,
                                         Algorithm::tree, Algorithm::halving_doubling,
                                         Algorithm::doubling, Algorithm::hierarchical),
                         [](const auto& each) { return std::string(algorithm_name(each.param)); });

class ScatterGather : public testing::TestWithParam<Algorithm> {};

TEST_P(ScatterGather, WorksAtEveryWorldSize) {
  for (const CollectiveKind kind : {CollectiveKind::reduce_scatter, CollectiveKind::allgather}) {
    for (int world = 1; world <= kLargestWorld; ++world) {
      for (const std::size_t count : counts_for(world)) {
        for (const std::size_t piece : {std::size_t{0}, std::size_t{2}}) {
          const auto schedules = build_all({kind, GetParam(), 0, world, count, piece, nullptr});
          ASSERT_EQ(check_schedules(schedules, kind), "")
              << fmt::format("world {} count {} piece {}", world, count, piece);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Both, ScatterGather, testing::Values(Algorithm::ring, Algorithm::direct),
                         [](const auto& each) { return std::string(algorithm_name(each.param)); });

TEST(Traffic, EqualsTheFormulae) {
  for (int world = 2; world <= 16; ++world) {
    const auto n = static_cast<std::size_t>(world);
    const std::size_t count = 60 * n;
    const auto sent = [&](Algorithm algorithm) {
      std::vector<std::size_t> elements;
      for (const Schedule& s :
           build_all({CollectiveKind::allreduce, algorithm, 0, world, count, 32, nullptr})) {
        elements.push_back(s.elements_sent());
      }
      return elements;
    };
    EXPECT_EQ(sent(Algorithm::ring), std::vector(n, 2 * (n - 1) * count / n));
    EXPECT_EQ(sent(Algorithm::direct), std::vector(n, 2 * (n - 1) * count / n));
    EXPECT_EQ(sent(Algorithm::oneshot), std::vector(n, (n - 1) * count));
    // Each tree has N-1 edges, and half of the buffer crosses each once in both directions.
    std::size_t tree = 0;
    for (const std::size_t elements : sent(Algorithm::tree)) {
      tree += elements;
    }
    EXPECT_EQ(tree, 2 * (n - 1) * count);
    if ((n & (n - 1)) == 0) {
      for (const std::size_t elements : sent(Algorithm::halving_doubling)) {
        EXPECT_NEAR(static_cast<double>(elements), 2.0 * static_cast<double>((n - 1) * count / n),
                    2.0 * static_cast<double>(world));
      }
    }
  }
}

TEST(Traffic, HierarchicalSendsOneBufferPerNodeAcross) {
  const Topology topology(12, 4, 0);
  const std::size_t count = 2400;
  std::vector<std::size_t> across(3);
  for (const Schedule& s : build_all(
           {CollectiveKind::allreduce, Algorithm::hierarchical, 0, 12, count, 100, &topology})) {
    for (const Operation& op : s.operations) {
      if (op.kind == OperationKind::send && !topology.same_node(s.rank, op.peer)) {
        across[static_cast<std::size_t>(topology.node_of_rank(s.rank))] += op.range.size();
      }
    }
  }
  EXPECT_EQ(across, std::vector<std::size_t>(3, 2 * 2 * count / 3));
}

TEST(Tree, NoRankIsAnInnerNodeOfBothTreesAndDepthIsLogarithmic) {
  for (int world = 2; world <= 64; world += 2) {
    for (const Schedule& s :
         build_all({CollectiveKind::allreduce, Algorithm::tree, 0, world, 2, 0, nullptr})) {
      std::set<std::size_t> inner;  // halves that this rank passes on towards a root
      for (const Operation& op : s.operations) {
        if (op.kind == OperationKind::receive && op.add) {
          inner.insert(op.range.begin);
        }
      }
      EXPECT_LE(inner.size(), 1U) << "rank " << s.rank << " of " << world;
    }
  }
}

TEST(Checker, SeesWhatIsWrong) {
  const auto broken = [](auto change) {
    auto schedules = build_all({CollectiveKind::allreduce, Algorithm::ring, 0, 4, 17, 2, nullptr});
    change(schedules[1]);
    return check_schedules(schedules, CollectiveKind::allreduce);
  };
  EXPECT_EQ(broken([](Schedule&) {}), "");
  EXPECT_NE(broken([](Schedule& s) { s.operations.front().peer = 3; }), "");
  EXPECT_NE(broken([](Schedule& s) { --s.operations.front().range.end; }), "");
  EXPECT_NE(broken([](Schedule& s) { s.operations.back().add = !s.operations.back().add; }), "");
  EXPECT_NE(broken([](Schedule& s) {
              ++s.operations.front().range.begin;
              ++s.operations.front().range.end;
            }),
            "");
  EXPECT_NE(broken([](Schedule& s) {
              s.dependencies.clear();
              s.first_dependency.assign(s.first_dependency.size(), 0);
            }),
            "");
}

TEST(Checker, SeesASendThatReliesOnBuffering) {
  // Both ranks send their buffer and receive into it afterwards: works only if sends are buffered.
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {
    Schedule s;
    s.rank = rank;
    s.world = 2;
    s.count = 1;
    s.operations = {{OperationKind::send, false, 1 - rank, {0, 1}, 0},
                    {OperationKind::receive, true, 1 - rank, {0, 1}, 0}};
    s.dependencies = {0};
    s.first_dependency = {0, 0, 1};
    schedules.push_back(s);
  }
  EXPECT_NE(check_schedules(schedules, CollectiveKind::allreduce), "");
}

TEST(BuildSchedule, OneRankOfThousandsIsCheap) {
  const int world = 4096;
  const Topology topology(world, 8, 0);
  for (const Algorithm algorithm :
       {Algorithm::ring, Algorithm::direct, Algorithm::tree, Algorithm::halving_doubling,
        Algorithm::doubling, Algorithm::hierarchical}) {
    const Schedule s =
        build_schedule({CollectiveKind::allreduce, algorithm, 1234, world, 1U << 20, 0, &topology});
    EXPECT_LE(s.operations.size(), 5U * world) << algorithm_name(algorithm);
    EXPECT_LE(s.dependencies.size(), 3 * s.operations.size()) << algorithm_name(algorithm);
  }
}

TEST(BuildSchedule, RefusesWhatDoesNotExist) {
  EXPECT_THROW(static_cast<void>(build_schedule(
                   {CollectiveKind::allgather, Algorithm::tree, 0, 2, 1, 0, nullptr})),
               Error);
  EXPECT_THROW(static_cast<void>(build_schedule(
                   {CollectiveKind::allreduce, Algorithm::hierarchical, 0, 2, 1, 0, nullptr})),
               Error);
  EXPECT_THROW(static_cast<void>(parse_algorithm("star")), ConfigError);
  EXPECT_EQ(parse_algorithm("halving_doubling"), Algorithm::halving_doubling);
}

}  // namespace
}  // namespace paceline
