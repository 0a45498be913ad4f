// SPDX-License-Identifier: Apache-2.0
#include "ps/ps_synchronizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tuple>

#include "async/asgd_backend.h"
#include "common/base/error.h"
#include "ps/partition.h"
#include "ps/ps_backend.h"
#include "ps/wire.h"
#include "tests/ps/ps_cluster.h"
#include "tests/ps/ps_training.h"
#include "tests/ps/ring_order_reference.h"

namespace paceline {
namespace {

using testing::drive_step;
using testing::expect_same_bits;
using testing::initial_weights;
using testing::kBuckets;
using testing::make_config;
using testing::momentum_sgd;
using testing::reference_weights;
using testing::run_ps_job;
using testing::train;

using Shape =
    std::tuple<int, int, const char*, const char*>;  // world, servers, placement, transport

class PsBitwise : public ::testing::TestWithParam<Shape> {};

TEST_P(PsBitwise, SynchronousTrainingEqualsThePlainFold) {
  const auto [world, servers, placement, transport] = GetParam();
  Config config = make_config(world, servers);
  config.ps.placement = placement;
  config.ps.transport = transport;
  if (config.ps.placement == "colocated" && servers > world) {
    EXPECT_THROW(ps_backend().validate(config), ConfigError);
    return;
  }
  const BucketPlan plan(kBuckets);
  constexpr std::int64_t kSteps = 4;
  const auto expected =
      reference_weights(plan, world, kSteps, momentum_sgd(), initial_weights(plan.elements()));
  for (const auto& weights : train(ps_backend(), config, plan, momentum_sgd(), kSteps)) {
    expect_same_bits(expected, weights);
  }
}

#ifdef __SANITIZE_THREAD__  // ten times as slow
const int kWorlds[] = {2, 4};
const int kServers[] = {1, 3};
#else
const int kWorlds[] = {1, 2, 3, 4};
const int kServers[] = {1, 2, 3};
#endif
INSTANTIATE_TEST_SUITE_P(Shapes, PsBitwise,
                         ::testing::Combine(::testing::ValuesIn(kWorlds),
                                            ::testing::ValuesIn(kServers),
                                            ::testing::Values("process", "colocated"),
                                            ::testing::Values("tcp", "ipc")),
                         [](const ::testing::TestParamInfo<Shape>& shape) {
                           return fmt::format("world{}_servers{}_{}_{}", std::get<0>(shape.param),
                                              std::get<1>(shape.param), std::get<2>(shape.param),
                                              std::get<3>(shape.param));
                         });

TEST(PsSynchronizer, OverlapOffAndBoundZeroGiveTheSameBits) {
  const BucketPlan plan(kBuckets);
  Config config = make_config(3, 2);
  const auto expected =
      reference_weights(plan, 3, 3, momentum_sgd(), initial_weights(plan.elements()));
  config.sync_options.overlap = false;
  expect_same_bits(expected, train(ps_backend(), config, plan, momentum_sgd(), 3)[2]);
  config.sync_options.overlap = true;
  config.ps.consistency = "ssp";
  config.ps.staleness = 0;
  expect_same_bits(expected, train(ps_backend(), config, plan, momentum_sgd(), 3)[0]);
}

TEST(PsSynchronizer, ListensOnIpv6) {
  const BucketPlan plan(kBuckets);
  Config config = make_config(2, 1);
  config.comm.host = "::1";
  config.ps.transport = "tcp";
  expect_same_bits(reference_weights(plan, 2, 2, momentum_sgd(), initial_weights(plan.elements())),
                   train(ps_backend(), config, plan, momentum_sgd(), 2)[1]);
}

TEST(PsSynchronizer, AsynchronousRanksEndWithTheServersWeights) {
  const BucketPlan plan(kBuckets);
  for (const int servers : {1, 2}) {
    const auto weights = train(asgd_backend(), make_config(4, servers), plan, momentum_sgd(), 5);
    for (int rank = 1; rank < 4; ++rank) {
      expect_same_bits(weights[0], weights[static_cast<std::size_t>(rank)]);
    }
    EXPECT_NE(weights[0], initial_weights(plan.elements()));
  }
}

TEST(PsSynchronizer, AloneAsynchronousEqualsSynchronous) {
  const BucketPlan plan(kBuckets);
  expect_same_bits(reference_weights(plan, 1, 5, momentum_sgd(), initial_weights(plan.elements())),
                   train(asgd_backend(), make_config(1, 2), plan, momentum_sgd(), 5)[0]);
}

TEST(PsSynchronizer, UnevenStepCountsDoNotHangBoundedStaleness) {
  const BucketPlan plan(kBuckets);
  Config config = make_config(3, 1);
  config.ps.consistency = "ssp";
  config.ps.staleness = 1;
  AbortToken abort;
  const auto init = initial_weights(plan.elements());
  run_ps_job(ps_backend(), config, nullptr, abort, [&](Synchronizer& sync, int rank) {
    Device device;
    const ReplicaView view = sync.bind(plan, device, momentum_sgd(), init);
    for (int round = 0; round < 2; ++round) {
      for (std::int64_t step = 0; step < 2 + 4 * rank; ++step) {
        drive_step(sync, view, plan, step, rank, 3);
      }
      sync.quiesce();
    }
  });
}

TEST(PsSynchronizer, CountsBytesAndStaleness) {
  const BucketPlan plan(kBuckets);
  const Partition partition(plan, 2);
  AbortToken abort;
  const auto init = initial_weights(plan.elements());
  constexpr std::int64_t kSteps = 6;
  std::mutex mutex;
  Staleness total;
  run_ps_job(asgd_backend(), make_config(2, 2), nullptr, abort, [&](Synchronizer& sync, int rank) {
    Device device;
    const ReplicaView view = sync.bind(plan, device, momentum_sgd(), init);
    Staleness mine;
    std::uint64_t bytes = 0;
    for (std::int64_t step = 0; step <= kSteps; ++step) {
      if (step == kSteps) {
        sync.quiesce();
        const StepReport last = sync.commit();
        mine.merge(last.staleness);
        bytes += last.bytes_sent;
        break;
      }
      const StepReport report = drive_step(sync, view, plan, step, rank, 2);
      mine.merge(report.staleness);
      bytes += report.bytes_sent;
    }
    EXPECT_EQ(mine.updates, kSteps);
    // Pushes, then a drain per server and a pull per key.
    EXPECT_EQ(bytes, kSteps * (plan.elements() * sizeof(float) + partition.count() * kHeaderBytes) +
                         (2 + partition.count()) * kHeaderBytes);
    const std::scoped_lock lock(mutex);
    total.merge(mine);
  });
  EXPECT_EQ(total.updates, 2 * kSteps);
  EXPECT_LE(total.max, kSteps) << "no more updates than the other worker made";
}

TEST(PsSynchronizer, RefusesAWorkerThatIsConfiguredOtherwise) {
  Config config = make_config(2, 1);
  AbortToken abort;
  const std::vector<std::size_t> other{7};
  try {
    run_ps_job(ps_backend(), config, nullptr, abort, [&](Synchronizer& sync, int rank) {
      Device device;
      const BucketPlan plan(rank == 0 ? kBuckets : other);
      sync.bind(plan, device, momentum_sgd(), initial_weights(plan.elements()));
    });
    FAIL() << "the job ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("number of buckets"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace paceline
