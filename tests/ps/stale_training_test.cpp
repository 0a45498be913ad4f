// SPDX-License-Identifier: Apache-2.0
// Whole jobs with the rules for stale gradients; and what a worker reports of its transfers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "async/asgd_backend.h"
#include "common/base/error.h"
#include "common/base/time.h"
#include "ps/ps_backend.h"
#include "tests/ps/ps_cluster.h"
#include "tests/ps/ps_training.h"

namespace paceline {
namespace {

using testing::drive_step;
using testing::initial_weights;
using testing::make_config;
using testing::run_ps_job;

const std::vector<std::size_t> kSmall{5, 0, 300, 7'000};

float target(std::size_t i) {
  return std::sin(static_cast<float>(i));
}

/// Mean square distance to the target.
double distance(std::span<const float> weights) {
  double sum = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double off = static_cast<double>(weights[i] - target(i));
    sum += off * off;
  }
  return sum / static_cast<double>(weights.size());
}

/// Each worker descends half the square distance to the target, with its own number of samples.
std::vector<float> descend(const Backend& backend, const Config& config, const OptimizerSpec& spec,
                           float lr, std::int64_t steps) {
  const BucketPlan plan(kSmall);
  const auto init = initial_weights(plan.elements());
  std::vector<std::vector<float>> ends(static_cast<std::size_t>(config.world));
  AbortToken abort;
  run_ps_job(backend, config, nullptr, abort, [&](Synchronizer& sync, int rank) {
    Device device;
    Stream stream;
    const ReplicaView view = sync.bind(plan, device, spec, init);
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::int64_t samples = 1 + (rank + step) % 3;
      sync.begin_step({step, lr, samples, 0});
      for (BucketId b = plan.count(); b-- > 0;) {
        sync.parameters_needed(b, stream);
      }
      for (BucketId b = 0; b < plan.count(); ++b) {
        for (std::size_t i = plan[b].begin; i < plan[b].end; ++i) {
          view.gradients[i] = static_cast<float>(samples) * (view.weights[i] - target(i));
        }
        sync.gradient_ready(b, Event{});
      }
      static_cast<void>(sync.commit());
    }
    sync.quiesce();
    ends[static_cast<std::size_t>(rank)].assign(view.weights.begin(), view.weights.end());
  });
  for (const auto& end : ends) {
    testing::expect_same_bits(ends[0], end);
  }
  return ends[0];
}

void expect_descent(const Backend& backend, const Config& config, const OptimizerSpec& spec = {},
                    float lr = 0.1F) {
  SCOPED_TRACE(fmt::format("{} rate={} compensate={} servers={} wire={} compress={}", backend.name,
                           config.async.rate, config.async.compensate, config.ps.servers,
                           config.sync_options.wire, config.compress.method));
  const BucketPlan plan(kSmall);
  const double before = distance(initial_weights(plan.elements()));
  EXPECT_LT(distance(descend(backend, config, spec, lr, 25)), 0.01 * before);
}

TEST(StaleTraining, Descends) {
  for (const char* compensate : {"none", "constant", "adaptive"}) {
    Config config = make_config(3, 2);
    config.async.compensate = compensate;
    expect_descent(asgd_backend(), config);
    config.async.rate = "staleness";
    config.ps.consistency = "ssp";
    config.ps.staleness = 2;
    expect_descent(ps_backend(), config);
  }
}

TEST(StaleTraining, DescendsWithWhatElseChangesGradients) {
  Config config = make_config(3, 1);
  config.ps.consistency = "asp";
  config.async.compensate = "adaptive";
  config.sync_options.wire = "fp16";
  expect_descent(ps_backend(), config);
  config.sync_options.wire = "fp32";
  config.compress.method = "topk";
  config.compress.density = 0.5;
  expect_descent(ps_backend(), config);
  config.compress.method = "none";
  config.ps.placement = "colocated";
  OptimizerSpec adam;
  adam.kind = OptimizerKind::adam;
  adam.clip_norm = 100.0F;
  expect_descent(ps_backend(), config, adam, 0.03F);
}

std::string refusal_of(const Backend& backend, const Config& config) {
  try {
    backend.validate(config);
    return {};
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(StaleTraining, RefusesByName) {
  const auto refuses = [](const Config& config, const char* key) {
    EXPECT_NE(refusal_of(ps_backend(), config).find(key), std::string::npos)
        << key << ": " << refusal_of(ps_backend(), config);
  };
  Config config = make_config(2, 1);
  config.async.rate = "staleness";
  refuses(config, "async.rate=staleness");
  config.async.rate = "constant";
  config.async.compensate = "adaptive";
  refuses(config, "async.compensate=adaptive");
  config.ps.consistency = "ssp";
  config.ps.staleness = 0;
  refuses(config, "async.compensate=adaptive");
  config.ps.staleness = 1;
  EXPECT_EQ(refusal_of(ps_backend(), config), "");
  EXPECT_EQ(refusal_of(asgd_backend(), config), "");
  config.async.lambda = -0.5;
  refuses(config, "async.lambda=-0.5");
  config.async.lambda = 0.0;
  for (const double decay : {-0.1, 1.0}) {
    config.async.mean_square = decay;
    refuses(config, "async.mean_square=");
  }
  config.async.mean_square = 0.0;
  EXPECT_EQ(refusal_of(ps_backend(), config), "");
  config.ps.staleness = -1;
  refuses(config, "ps.staleness=-1");
}

TEST(StaleTraining, AColocatedServersMemoryIsItsRanks) {
  for (const char* compensate : {"none", "adaptive"}) {
    Config config = make_config(2, 1);
    config.ps.placement = "colocated";
    config.async.compensate = compensate;
    const BucketPlan plan(kSmall);
    const std::size_t bytes = plan.elements() * sizeof(float);
    const std::size_t squares = std::string_view(compensate) == "adaptive" ? bytes : 0;
    AbortToken abort;
    run_ps_job(asgd_backend(), config, nullptr, abort, [&](Synchronizer& sync, int rank) {
      Device device;
      const ReplicaView view = sync.bind(plan, device, {}, initial_weights(plan.elements()));
      for (std::int64_t step = 0; step < 3; ++step) {
        drive_step(sync, view, plan, step, rank, 2);
      }
      sync.quiesce();
      const MemoryUse use = sync.memory();
      EXPECT_EQ(use.weights, rank == 0 ? 2 * bytes : bytes);
      EXPECT_EQ(use.optimizer, rank == 0 ? squares : 0);
      if (rank == 0 && squares > 0) {
        EXPECT_GE(use.staging, bytes) << "a worker's version besides the newest";
      }
    });
  }
}

TEST(Transfers, EachPushIsReportedOnceWithinItsStep) {
  const BucketPlan plan(kSmall);
  for (const bool overlap : {true, false}) {
    Config config = make_config(2, 2);
    config.sync_options.overlap = overlap;
    for (const Backend& backend : {ps_backend(), asgd_backend()}) {
      AbortToken abort;
      run_ps_job(backend, config, nullptr, abort, [&](Synchronizer& sync, int rank) {
        Device device;
        const ReplicaView view = sync.bind(plan, device, {}, initial_weights(plan.elements()));
        std::int64_t previous = now_ns();
        for (std::int64_t step = 0; step < 4; ++step) {
          const std::int64_t begin = now_ns();
          const StepReport report = drive_step(sync, view, plan, step, rank, 2);
          std::set<BucketId> seen;
          for (const Transfer& transfer : report.transfers) {
            EXPECT_TRUE(seen.insert(transfer.bucket).second) << transfer.bucket;
            EXPECT_GE(transfer.begin_ns, previous) << "pushed in the step before";
            EXPECT_LE(transfer.begin_ns, begin);
            EXPECT_GT(transfer.end_ns, transfer.begin_ns);
            EXPECT_LE(transfer.end_ns, now_ns());
          }
          EXPECT_EQ(seen, step == 0 ? std::set<BucketId>{} : (std::set<BucketId>{0, 2, 3}));
          previous = begin;
        }
        sync.quiesce();
        EXPECT_EQ(sync.commit().transfers.size(), 3U);
      });
    }
  }
}

}  // namespace
}  // namespace paceline
