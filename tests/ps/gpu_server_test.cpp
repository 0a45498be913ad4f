// SPDX-License-Identifier: Apache-2.0
// Servers with ps.device=cuda on the host's double of the CUDA module: the same bits as servers in
// host memory, and what they ask of a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "async/asgd_backend.h"
#include "common/base/error.h"
#include "ps/gpu_shard.h"
#include "ps/ps_backend.h"
#include "ps/ps_synchronizer.h"
#include "tests/ps/ps_training.h"
#include "tests/ps/server_rig.h"
#include "tests/support/backend_conformance.h"
#include "tests/support/checkpoint.h"
#include "tests/support/host_log.h"
#include "tests/support/host_module.h"

namespace paceline {
namespace {

using testing::Checkpoint;
using testing::conformance_cases;
using testing::expect_same_bits;
using testing::initial_weights;
using testing::make_config;
using testing::momentum_sgd;
using testing::reference_weights;
using testing::Rig;
using testing::run_ps_job;
using testing::test_gradient;

const CudaModule& servers_double() {
  static const CudaModule module(test::host_module());
  return module;
}

Backend ps_on_double() {
  Backend row = ps_backend();
  row.make = [](const WorkerContext& context) {
    return make_ps_synchronizer(context, ps_rule(context.config), servers_double);
  };
  row.serve = [](const ServerContext& context) {
    serve_ps(context, ps_rule(context.config), servers_double);
  };
  return row;
}

Config gpu_config(int world, int servers) {
  Config config = make_config(world, servers);
  config.ps.device = "cuda";
  return config;
}

OptimizerSpec adam_spec() {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::adam;
  spec.weight_decay = 1e-3F;
  return spec;
}

TEST(GpuServer, GivesTheBitsOfThePlainFold) {
  const BucketPlan plan = testing::plan_with_tensors(90);
  for (const OptimizerSpec& spec : {momentum_sgd(), adam_spec()}) {
    for (const int world : {1, 2, 3}) {
      const auto expected =
          reference_weights(plan, world, 3, spec, initial_weights(plan.elements()));
      for (const int servers : {1, 2}) {
        SCOPED_TRACE(fmt::format("adam {} world {} servers {}", spec.kind == OptimizerKind::adam,
                                 world, servers));
        for (const auto& weights :
             testing::train(ps_on_double(), gpu_config(world, servers), plan, spec, 3)) {
          expect_same_bits(expected, weights);
        }
      }
    }
  }
}

/// What changes a gradient before it reaches the shard, whatever the device.
TEST(GpuServer, GivesTheBitsOfServersInHostMemory) {
  const BucketPlan plan = testing::plan_with_tensors(90);
  OptimizerSpec lars = momentum_sgd();
  lars.kind = OptimizerKind::lars;
  OptimizerSpec clipped = adam_spec();
  clipped.clip_norm = 0.5F;
  OptimizerSpec nesterov = momentum_sgd();
  nesterov.nesterov = true;
  const auto expect_same = [&](Config config, const OptimizerSpec& spec) {
    config.ps.device = "cpu";
    const auto host = testing::train(ps_backend(), config, plan, spec, 3);
    config.ps.device = "cuda";
    const auto gpu = testing::train(ps_on_double(), config, plan, spec, 3);
    expect_same_bits(host[0], gpu[0]);
    EXPECT_NE(gpu[0], initial_weights(plan.elements()));
  };
  const Config config = make_config(2, 2);
  for (const OptimizerSpec& spec : {lars, clipped, nesterov, OptimizerSpec{}}) {
    expect_same(config, spec);
  }
  Config changed = config;
  changed.ps.placement = "colocated";
  changed.sync_options.exact = true;
  expect_same(changed, momentum_sgd());
  changed = config;
  changed.sync_options.wire = "fp16";
  expect_same(changed, momentum_sgd());
  changed.sync_options.wire = "fp32";
  changed.compress.method = "topk";
  expect_same(changed, adam_spec());
}

/// One server's without those of large buckets, which several share.
std::vector<testing::ConformanceCase> cases_for(const Config& config) {
  auto cases = conformance_cases(config, 1, 3);
  if (config.ps.servers == 1) {
    cases.resize(cases.size() - 2);
  }
  return cases;
}

TEST(GpuServer, Conforms) {
  for (const int servers : {1, 2}) {
    for (const auto& test : cases_for(gpu_config(1, servers))) {
      testing::check_synchronous(ps_on_double(), test);
    }
  }
}

TEST(GpuServer, ConformsAsynchronously) {
  for (const int servers : {1, 2}) {
    Config config = gpu_config(1, servers);
    config.ps.consistency = "asp";
    for (const auto& test : cases_for(config)) {
      testing::check_asynchronous(ps_on_double(), test);
    }
  }
}

/// One schedule of pushes, whoever may push next chosen at random; the weights after each.
std::vector<std::vector<float>> follow_schedule(const JobDescription& job,
                                                const ShardMaker& make_shard) {
  Rig rig(job, 0.25F, make_shard);
  const std::size_t n = job.buckets[0];
  std::mt19937 random(5);
  std::vector<std::vector<float>> seen;
  std::vector<bool> waits(static_cast<std::size_t>(job.world), false);
  for (std::int64_t turn = 0; turn < 24; ++turn) {
    const auto w = static_cast<int>(random() % static_cast<unsigned>(job.world));
    if (waits[static_cast<std::size_t>(w)]) {
      continue;
    }
    std::vector<float> gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      gradient[i] = test_gradient(turn, w, i);
    }
    rig.send(rig.client(w).push(0, {turn, 0.05F, 1 + turn % 3, 0}), Rig::floats(gradient));
    waits[static_cast<std::size_t>(w)] = true;
    for (int other = 0; other < job.world; ++other) {
      if (rig.has_answer(other)) {
        rig.take(other);
        waits[static_cast<std::size_t>(other)] = false;
      }
    }
    const std::span<const float> weights = rig.server().weights(0);
    seen.emplace_back(weights.begin(), weights.end());
  }
  return seen;
}

TEST(GpuServer, FollowsEveryRuleForStaleGradients) {
  using Variant = DelayCompensation::Variant;
  const ShardMaker on_gpu = gpu_shard_maker(servers_double(), {.index = 3});
  for (const PsRule kind : {testing::kBsp, testing::kAsp, testing::ssp(2)}) {
    for (const Variant variant : {Variant::none, Variant::constant, Variant::adaptive}) {
      for (const OptimizerSpec& spec : {momentum_sgd(), adam_spec()}) {
        PsRule rule = kind;
        if (!waits_for_all(kind)) {
          rule.rate_by_staleness = variant != Variant::constant;
          rule.compensation = {variant, paper_lambda(variant), 0.95F};
        }
        JobDescription job = Rig::job_of(3, rule, {5'000});
        job.optimizer = spec;
        const auto host = follow_schedule(job, make_host_shard);
        const auto gpu = follow_schedule(job, on_gpu);
        ASSERT_EQ(host.size(), gpu.size());
        for (std::size_t turn = 0; turn < host.size(); ++turn) {
          expect_same_bits(host[turn], gpu[turn]);
        }
        EXPECT_NE(gpu.front(), gpu.back());
      }
    }
  }
}

/// Answers that were sent stay as they are while the device's weights move on.
TEST(GpuServer, AnswersKeepTheirVersion) {
  Rig rig(Rig::job_of(2, testing::kAsp, {100}), 0.0F, gpu_shard_maker(servers_double(), {}));
  rig.push(0);
  const Outgoing first = rig.take(0);
  rig.push(1);
  rig.push(0);
  EXPECT_EQ(first.payload.floats()[99], -1.0F);
  EXPECT_EQ(rig.take(1).payload.floats()[99], -2.0F);
  EXPECT_EQ(rig.take(0).payload.floats()[99], -3.0F);
}

TEST(GpuServer, UpdatesAKeyInOneLaunch) {
  Rig rig(Rig::job_of(2, testing::kBsp, {100'000, 700}), 0.0F,
          gpu_shard_maker(servers_double(), {}));
  const auto sizes = rig.partition().keys();
  test::host_log().start();
  for (std::size_t key = 0; key < sizes.size(); ++key) {
    rig.push(0, 1, 1.0F, key);
    rig.push(1, 1, 1.0F, key);
  }
  std::vector<std::size_t> launches;
  for (const test::HostCall& call : test::host_log().take()) {
    if (call.what == "update") {
      launches.push_back(call.count);
    }
  }
  ASSERT_EQ(launches.size(), sizes.size());
  for (std::size_t key = 0; key < sizes.size(); ++key) {
    EXPECT_EQ(launches[key], sizes[key].elements());
  }
}

TEST(GpuServer, CountsWhatIsOnTheDevice) {
  const std::size_t before = test::host_module_bytes();
  {
    JobDescription job = Rig::job_of(2, testing::kAsp, {1'000, 3'000});
    job.optimizer = adam_spec();
    Rig rig(job, 0.0F, gpu_shard_maker(servers_double(), {}));
    const MemoryUse use = rig.server().memory();
    EXPECT_EQ(use.weights, 4'000 * sizeof(float));
    EXPECT_EQ(use.optimizer, 2 * 4'000 * sizeof(float));
    EXPECT_EQ(use.gradients, 3'000 * sizeof(float)) << "the largest key's";
    EXPECT_EQ(use.staging, (4'000 + 3'000) * sizeof(float));
    EXPECT_EQ(test::host_module_bytes() - before, use.weights + use.optimizer + use.gradients);
  }
  EXPECT_EQ(test::host_module_bytes(), before);
  AbortToken abort;
  Config config = gpu_config(1, 1);
  config.ps.placement = "colocated";
  run_ps_job(ps_on_double(), config, nullptr, abort, [&](Synchronizer& sync, int /*rank*/) {
    const BucketPlan plan(std::vector<std::size_t>{1'000, 3'000});
    Device device;
    sync.bind(plan, device, momentum_sgd(), initial_weights(plan.elements()));
    const MemoryUse use = sync.memory();
    EXPECT_EQ(use.weights, 2 * 4'000 * sizeof(float)) << "the replica and the server's";
    EXPECT_EQ(use.gradients, (4'000 + 3'000) * sizeof(float));
    EXPECT_EQ(use.optimizer, 4'000 * sizeof(float));
  });
}

TEST(GpuServer, ResumesFromACheckpointOfAnyDevice) {
  const BucketPlan plan = testing::plan_with_tensors(90);
  constexpr std::int64_t kSteps = 3;
  for (const OptimizerSpec& spec : {momentum_sgd(), adam_spec()}) {
    const auto expected =
        reference_weights(plan, 2, 2 * kSteps, spec, initial_weights(plan.elements()));
    for (const auto& [first, second] :
         {std::pair{"cuda", "cuda"}, std::pair{"cpu", "cuda"}, std::pair{"cuda", "cpu"}}) {
      SCOPED_TRACE(fmt::format("{} then {}", first, second));
      std::vector<Checkpoint> parts(2);
      std::vector<std::vector<float>> ends(2);
      const auto half = [&](const char* device_name, std::int64_t from) {
        Config config = gpu_config(2, 2);
        config.ps.device = device_name;
        AbortToken abort;
        run_ps_job(ps_on_double(), config, nullptr, abort, [&](Synchronizer& sync, int rank) {
          const auto index = static_cast<std::size_t>(rank);
          Device device;
          const ReplicaView view = sync.bind(plan, device, spec, initial_weights(plan.elements()));
          if (from > 0) {
            sync.load(parts[index]);
          }
          for (std::int64_t step = from; step < from + kSteps; ++step) {
            testing::drive_step(sync, view, plan, step, rank, 2);
          }
          sync.quiesce();
          if (from == 0) {
            sync.save(parts[index]);
          }
          ends[index].assign(view.weights.begin(), view.weights.end());
        });
      };
      half(first, 0);
      half(second, kSteps);
      expect_same_bits(expected, ends[0]);
      expect_same_bits(expected, ends[1]);
    }
  }
}

std::string job_error(const Config& config, const BucketPlan& plan) {
  AbortToken abort;
  try {
    run_ps_job(ps_on_double(), config, nullptr, abort, [&](Synchronizer& sync, int /*rank*/) {
      Device device;
      sync.bind(plan, device, momentum_sgd(), initial_weights(plan.elements()));
    });
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(GpuServer, SaysWhatTheDevicesMemoryLacks) {
  const BucketPlan plan(std::vector<std::size_t>{1'000});
  test::limit_host_module(test::host_module_bytes() + 6'000);
  const std::string message = job_error(gpu_config(2, 1), plan);
  test::limit_host_module(std::size_t{8} << 30);
  EXPECT_NE(message.find("GPU 2: a server's optimizer state wants 4000 bytes, 2000 of"),
            std::string::npos)
      << message;
  EXPECT_EQ(job_error(gpu_config(2, 1), plan), "");
}

std::string maker_error(const CudaModule& module, int gpu) {
  try {
    static_cast<void>(gpu_shard_maker(module, {.index = gpu}));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(GpuServer, SaysWhyThereIsNoDevice) {
  const CudaModule none({.built = false, .folders = {}});
  EXPECT_EQ(maker_error(none, 0),
            "ps.device = \"cuda\" cannot be used here: " + none.reason() + "; allowed: cpu");
  EXPECT_NE(maker_error(servers_double(), 8).find("cuda.device = 8"), std::string::npos);
  EXPECT_EQ(maker_error(servers_double(), 7), "");
}

}  // namespace
}  // namespace paceline
