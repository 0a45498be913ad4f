// SPDX-License-Identifier: Apache-2.0
// ZeRO-1: reduce-scatter and allgather as collectives of their own, and sync=sharded against
// sync=ring: bits, bytes on the wire, bytes of optimizer state, checkpoints.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/sync/reduction_order.h"
#include "ring/collective.h"
#include "ring/ring_backend.h"
#include "tests/comm/transport_harness.h"
#include "tests/ring/ring_steps.h"

namespace paceline {
namespace {

using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::known_gradient;
using testing::one_sample_step;
using testing::run_backend;
using testing::run_one_sample_steps;

/// Element j on rank r; sums over ranks are exact.
float place_value(std::size_t j, int r) {
  return static_cast<float>(j * 16 + static_cast<std::size_t>(r));
}
float place_sum(std::size_t j, int world) {
  float sum = 0.0F;
  for (int r = 0; r < world; ++r) sum += place_value(j, r);
  return sum;
}

void expect_scatters_and_gathers(RankContext& context, const Topology& topology,
                                 const CollectiveOptions& options, std::size_t count) {
  SCOPED_TRACE(fmt::format("rank {} of {}, {} elements", context.rank(), context.size(), count));
  Collective collective(context.transport, topology, options);
  const auto buffer = context.transport.allocate(count * sizeof(float));
  const std::span<std::byte> bytes = buffer->bytes().first(count * sizeof(float));
  const std::span<float> values{reinterpret_cast<float*>(bytes.data()), count};
  for (std::size_t j = 0; j < count; ++j) values[j] = place_value(j, context.rank());
  collective.reduce_scatter(bytes, DataType::f32, true);
  const Range own = ring_chunk(count, context.size(), context.rank());
  for (std::size_t j = own.begin; j < own.end; ++j) {
    ASSERT_EQ(values[j], place_sum(j, context.size())) << "element " << j;
    values[j] += 0.5F;
  }
  collective.allgather(bytes, DataType::f32);
  for (std::size_t j = 0; j < count; ++j) {
    ASSERT_EQ(values[j], place_sum(j, context.size()) + 0.5F) << "element " << j;
  }
}

class ScatterAndGather : public ::testing::TestWithParam<std::string> {};

TEST_P(ScatterAndGather, WorkAtEveryCount) {
  for (int world = 1; world <= 5; ++world) {
    const Topology topology(world, 0, 0);
    RankOptions ranks;
    ranks.transport.kind = GetParam();
    run_ranks(world, ranks, [&](RankContext& context) {
      const auto n = static_cast<std::size_t>(world);
      for (const std::size_t count : std::set<std::size_t>{0, 1, n - 1, n, n + 1, 2 * n + 1, 997}) {
        for (const auto algorithm : {std::optional<Algorithm>{}, std::optional(Algorithm::ring)}) {
          CollectiveOptions options;
          options.algorithm = algorithm;
          options.chunk = 400;
          options.timeout = kTestTimeout;
          expect_scatters_and_gathers(context, topology, options, count);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ScatterAndGather, ::testing::Values("inproc", "tcp"),
                         [](const auto& each) { return each.param; });

constexpr int kShardedWorld = 3;

ConformanceCase sharded_case(const std::string& optimizer = "adam") {
  ConformanceCase test;
  test.config.sync = "sharded";
  test.config.world = kShardedWorld;
  test.config.comm.timeout = kTestTimeout;
  test.buckets = {7, 1000, 0, 2, 501};
  if (optimizer == "adam") {
    test.optimizer.kind = OptimizerKind::adam;
  } else {
    test.optimizer.momentum = optimizer == "momentum" ? 0.9F : 0.0F;
  }
  return test;
}

/// Gradients whose sum depends on the order of its terms.
float awkward_gradient(std::size_t j, int r, int t) {
  return known_gradient(j, r, t) * (r == 1 ? 1.0F : 1.0F / 3.0F);
}

void expect_rings_bits(const ConformanceCase& test) {
  const ConformanceOutcome sharded =
      run_one_sample_steps(sharded_backend(), test, awkward_gradient);
  const ConformanceOutcome ring = run_one_sample_steps(ring_backend(), test, awkward_gradient);
  expect_no_errors(sharded);
  expect_no_errors(ring);
  EXPECT_EQ(sharded.weights, ring.weights);
}

TEST(Sharded, HasTheRingsBits) {
  for (const char* optimizer : {"sgd", "momentum", "adam"}) {
    SCOPED_TRACE(optimizer);
    ConformanceCase test = sharded_case(optimizer);
    for (const int world : {1, 2, 3, 5}) {
      test.config.world = world;
      test.config.ring.algorithm = world == 3 ? "ring" : "auto";
      expect_rings_bits(test);
    }
  }
}

TEST(Sharded, HasTheRingsBitsInEveryFormat) {
  for (const char* wire : {"fp16", "bf16"}) {
    SCOPED_TRACE(wire);
    ConformanceCase test = sharded_case();
    test.config.sync_options.wire = wire;
    expect_rings_bits(test);
  }
  ConformanceCase exact = sharded_case();
  exact.config.sync_options.exact = true;
  expect_rings_bits(exact);
}

TEST(Sharded, ClipsByTheNormOfTheWholeGradient) {
  ConformanceCase test = sharded_case("momentum");
  test.optimizer.clip_norm = 0.25F;
  const ConformanceOutcome sharded =
      run_one_sample_steps(sharded_backend(), test, awkward_gradient);
  const ConformanceOutcome ring = run_one_sample_steps(ring_backend(), test, awkward_gradient);
  expect_no_errors(sharded);
  expect_equal_weights(sharded);
  double moved = 0.0;
  for (std::size_t j = 0; j < ring.weights[0].size(); ++j) {
    ASSERT_NEAR(sharded.weights[0][j], ring.weights[0][j], 1e-6) << "element " << j;
    moved = std::max(moved, std::abs(static_cast<double>(ring.weights[0][j]) -
                                     static_cast<double>(testing::known_initial(j))));
  }
  EXPECT_GT(moved, 1e-3);
  test.optimizer.clip_norm = 0.0F;
  EXPECT_NE(run_one_sample_steps(sharded_backend(), test, awkward_gradient).weights,
            sharded.weights);
}

TEST(Sharded, OneBadGradientLeavesTheWholeStepOutEverywhere) {
  ConformanceCase test = sharded_case();
  test.optimizer.skip_nonfinite = true;
  const auto bad_in_step_1 = [](std::size_t j, int r, int t) {
    return t == 1 && r == 2 && j == 900 ? std::numeric_limits<float>::quiet_NaN()
                                        : known_gradient(j, r, t);
  };
  expect_no_errors(run_one_sample_steps(sharded_backend(), test, bad_in_step_1));
  EXPECT_EQ(run_one_sample_steps(sharded_backend(), test, bad_in_step_1).weights,
            run_one_sample_steps(ring_backend(), test, bad_in_step_1).weights);
}

/// What memory() says on each rank.
std::vector<MemoryUse> memory_by_rank(const Backend& backend, const ConformanceCase& test) {
  std::vector<MemoryUse> all(static_cast<std::size_t>(test.config.world));
  std::mutex mutex;
  expect_no_errors(run_backend(backend, test, [&](ConformanceWorker& worker) {
    const std::scoped_lock lock(mutex);
    all[static_cast<std::size_t>(worker.rank)] = worker.synchronizer.memory();
    return StepReport{};
  }));
  return all;
}

TEST(Sharded, StateIsShardedAsTheFormulaSays) {
  for (const auto& [optimizer, moments] :
       {std::pair{"sgd", 0U}, std::pair{"momentum", 1U}, std::pair{"adam", 2U}}) {
    const ConformanceCase test = sharded_case(optimizer);
    const std::vector<MemoryUse> sharded = memory_by_rank(sharded_backend(), test);
    const std::vector<MemoryUse> ring = memory_by_rank(ring_backend(), test);
    std::size_t sum = 0;
    std::size_t most = 0;  // a bucket of n elements is at most ceil(n/N) on each rank
    constexpr std::size_t kRanks = kShardedWorld;
    for (const std::size_t n : test.buckets) most += (n + kRanks - 1) / kRanks;
    for (std::size_t r = 0; r < sharded.size(); ++r) {
      std::size_t elements = 0;
      for (const std::size_t n : test.buckets) {
        elements += n / kRanks + (r < n % kRanks ? 1 : 0);
      }
      EXPECT_EQ(sharded[r].optimizer, moments * sizeof(float) * elements) << optimizer << " " << r;
      EXPECT_LE(sharded[r].optimizer, moments * sizeof(float) * most);
      EXPECT_EQ(sharded[r].weights, ring[r].weights);
      EXPECT_EQ(sharded[r].gradients, ring[r].gradients);
      sum += sharded[r].optimizer;
    }
    EXPECT_EQ(sum, ring[0].optimizer);
  }
}

std::uint64_t bytes_sent(const Backend& backend, ConformanceCase test, std::size_t elements) {
  test.buckets = {elements};
  return run_one_sample_steps(backend, test, known_gradient).bytes_sent;
}

TEST(Sharded, SendsTheRingsBytes) {
  for (const char* transport : {"inproc", "tcp"}) {
    for (const std::size_t elements : {std::size_t{3000}, std::size_t{1001}}) {
      ConformanceCase test = sharded_case();
      test.config.comm.transport = transport;
      test.config.ring.algorithm = "ring";
      const std::uint64_t sent = bytes_sent(sharded_backend(), test, elements);
      EXPECT_EQ(sent, bytes_sent(ring_backend(), test, elements)) << transport;
      // Without framing: 2(N-1)/N of the bucket by each of N ranks in each step.
      constexpr std::size_t kFew = 18;
      const std::uint64_t payload = 2 * (kShardedWorld - 1) * sizeof(float);
      EXPECT_EQ(sent - bytes_sent(sharded_backend(), test, kFew),
                payload * (elements - kFew) * static_cast<std::uint64_t>(test.steps));
    }
  }
}

TEST(Sharded, SixteenBitsHalveTheGradientsPart) {
  ConformanceCase test = sharded_case();
  test.config.ring.algorithm = "ring";
  test.config.sync_options.wire = "bf16";
  const std::uint64_t payload = (kShardedWorld - 1) * (sizeof(float) + sizeof(std::uint16_t));
  EXPECT_EQ(bytes_sent(sharded_backend(), test, 3000) - bytes_sent(sharded_backend(), test, 300),
            payload * 2700 * static_cast<std::uint64_t>(test.steps));
}

/// Named arrays of one rank.
class ShardCheckpoint final : public StateWriter, public StateReader {
 public:
  void put(std::string_view name, std::span<const float> values) override {
    arrays_[std::string(name)].assign(values.begin(), values.end());
  }
  void put(std::string_view name, std::int64_t value) override {
    numbers_[std::string(name)] = value;
  }
  void get(std::string_view name, std::span<float> values) override {
    const auto& stored = arrays_.at(std::string(name));
    if (stored.size() != values.size()) throw Error("another length");
    std::copy(stored.begin(), stored.end(), values.begin());
  }
  std::int64_t get(std::string_view name) override { return numbers_.at(std::string(name)); }

 private:
  std::map<std::string, std::vector<float>> arrays_;
  std::map<std::string, std::int64_t> numbers_;
};

TEST(Sharded, ContinuesFromItsShards) {
  const ConformanceCase test = sharded_case();
  std::vector<ShardCheckpoint> states(kShardedWorld);
  std::vector<std::vector<float>> half;
  const auto steps = [&](ConformanceWorker& worker, int from, int to) {
    for (int t = from; t < to; ++t) one_sample_step(worker, t, kShardedWorld, known_gradient);
    worker.synchronizer.quiesce();
  };
  half = run_backend(sharded_backend(), test, [&](ConformanceWorker& worker) {
           steps(worker, 0, 2);
           worker.synchronizer.save(states[static_cast<std::size_t>(worker.rank)]);
           return StepReport{};
         }).weights;
  const ConformanceOutcome rest =
      run_backend(sharded_backend(), test, [&](ConformanceWorker& worker) {
        std::ranges::copy(half[0], worker.view.weights.begin());
        worker.synchronizer.load(states[static_cast<std::size_t>(worker.rank)]);
        steps(worker, 2, 4);
        return StepReport{};
      });
  expect_no_errors(rest);
  EXPECT_EQ(rest.weights, run_one_sample_steps(sharded_backend(), test, known_gradient).weights);
  const ConformanceOutcome swapped =
      run_backend(sharded_backend(), test, [&](ConformanceWorker& worker) {
        worker.synchronizer.load(states[static_cast<std::size_t>((worker.rank + 1) % 3)]);
        return StepReport{};
      });
  EXPECT_NE(swapped.errors[0].find("shard of rank 1 of 3"), std::string::npos) << swapped.errors[0];
}

}  // namespace
}  // namespace paceline
