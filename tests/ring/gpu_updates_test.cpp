// SPDX-License-Identifier: Apache-2.0
// Updates of weights in a GPU's memory (on the double): sync=single with device=cuda follows the
// CPU's, what the device leaves out does not count, and nothing of a step waits on the host for
// that step.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "ring/gpu_updates.h"
#include "ring/ring_backend.h"
#include "tests/ring/gpu_double.h"
#include "tests/ring/ring_steps.h"
#include "tests/support/checkpoint.h"
#include "tests/support/host_streams.h"

namespace paceline {
namespace {

using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::double_module;
using testing::known_gradient;
using testing::one_sample_step;
using testing::run_backend;
using testing::single_on_double;

constexpr OptimizerKind kKinds[] = {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::lars,
                                    OptimizerKind::lamb};

ConformanceCase single_case(OptimizerKind kind, const char* device) {
  ConformanceCase test;
  test.config.sync = "single";
  test.config.device = device;
  test.config.world = 1;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {7, 0, 5000, 1, 64};
  test.tensors = {{{0, 7}, 1, 1}, {{7, 5007}, 10, 2}, {{5007, 5008}, 1, 1}, {{5008, 5072}, 8, 2}};
  test.optimizer.kind = kind;
  test.optimizer.momentum = 0.5F;
  test.optimizer.weight_decay = 0.01F;
  test.optimizer.trust = 0.02F;
  return test;
}

/// Steps `steps`, each with gradient(j, 0, t); a checkpoint is taken and loaded after the first.
template <typename Gradient>
std::vector<float> weights_after(const Backend& backend, const ConformanceCase& test,
                                 const std::vector<int>& steps, Gradient gradient,
                                 int* skipped = nullptr) {
  const ConformanceOutcome outcome = run_backend(backend, test, [&](ConformanceWorker& worker) {
    for (const int t : steps) {
      const int left_out = one_sample_step(worker, t, 1, gradient).skipped;
      if (skipped != nullptr) *skipped += left_out;
      if (t == 0) {
        worker.synchronizer.quiesce();
        testing::Checkpoint checkpoint;
        worker.synchronizer.save(checkpoint);
        worker.synchronizer.load(checkpoint);
      }
    }
    worker.synchronizer.quiesce();
    return StepReport{};
  });
  expect_no_errors(outcome);
  return outcome.weights.at(0);
}

TEST(GpuUpdates, SingleConformsOnAGpu) {
  Config config;
  config.sync = "single";
  config.device = "cuda";
  for (const ConformanceCase& test : testing::conformance_cases(config, 1, 1)) {
    check_backend(single_on_double(), test);
  }
}

TEST(GpuUpdates, SingleOnAGpuFollowsTheCpu) {
  for (const OptimizerKind kind : kKinds) {
    for (const float clip : {0.0F, 0.5F}) {
      for (const bool scaled : {false, true}) {
        const auto weights = [&](const Backend& backend, const char* device) {
          ConformanceCase test = single_case(kind, device);
          test.optimizer.clip_norm = clip;
          test.optimizer.skip_nonfinite = scaled;
          return weights_after(backend, test, {0, 1, 2}, known_gradient);
        };
        const auto on_gpu = weights(single_on_double(), "cuda");
        const auto on_cpu = weights(single_backend(), "cpu");
        for (std::size_t j = 0; j < on_cpu.size(); ++j) {
          ASSERT_NEAR(on_gpu[j], on_cpu[j], 2e-6F * std::max(1.0F, std::abs(on_cpu[j]))) << j;
        }
      }
    }
  }
}

/// Adam's count of updates included: the later steps are the bits of a run without the bad one.
TEST(GpuUpdates, WhatTheDeviceLeavesOutDoesNotCount) {
  for (const OptimizerKind kind : kKinds) {
    for (const float clip : {0.0F, 0.5F}) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        ConformanceCase test = single_case(kind, "cuda");
        test.optimizer.clip_norm = clip;
        test.optimizer.skip_nonfinite = true;
        const auto bad_in_1_and_2 = [&](std::size_t j, int r, int t) {
          return (t == 1 || t == 2) && j == 4000 ? bad : known_gradient(j, r, t);
        };
        int skipped = 0;
        const Backend backend = single_on_double();
        const auto with = weights_after(backend, test, {0, 1, 2, 3, 4}, bad_in_1_and_2, &skipped);
        EXPECT_EQ(skipped, 2);
        EXPECT_EQ(with, weights_after(backend, test, {0, 3, 4}, known_gradient));
      }
    }
  }
}

/// The last step's outcome is found by quiesce, so that a checkpoint counts right.
TEST(GpuUpdates, AStateSavedAfterALeftOutStepIsThatBeforeIt) {
  ConformanceCase test = single_case(OptimizerKind::adam, "cuda");
  test.optimizer.skip_nonfinite = true;
  std::vector<std::int64_t> counts;
  const auto outcome = run_backend(single_on_double(), test, [&](ConformanceWorker& worker) {
    for (const int t : {0, 1}) {
      one_sample_step(worker, t, 1, [](std::size_t j, int r, int step) {
        return step == 1 ? std::numeric_limits<float>::infinity() : known_gradient(j, r, step);
      });
      worker.synchronizer.quiesce();
      testing::Checkpoint checkpoint;
      worker.synchronizer.save(checkpoint);
      counts.push_back(checkpoint.get("updates.2"));
    }
    return StepReport{};
  });
  expect_no_errors(outcome);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{1, 1}));
}

/// While the device is at something else.
TEST(GpuUpdates, TheHostWaitsForNoOutcomeBeforeTheNextStepIsQueued) {
  Gpu gpu(double_module(), {.timeout = std::chrono::seconds(20)});
  const std::vector<std::size_t> counts{8, 0, 3000};
  const BucketPlan plan(counts);
  const auto weights = gpu.allocate(plan.elements(), "weights");
  const auto gradients = gpu.allocate(plan.elements(), "gradients");
  OptimizerSpec spec;
  spec.kind = OptimizerKind::adam;
  spec.skip_nonfinite = true;
  spec.clip_norm = 1.0F;
  UpdateShares alone;
  GpuUpdates updates(gpu, gpu.stream(), alone, plan, spec,
                     {weights->values(), gradients->values()});
  std::atomic<bool> open = false;
  const auto until_open = [&] {
    while (!open) std::this_thread::sleep_for(kAbortPollInterval);
  };
  ASSERT_EQ(test::queue_host_work(gpu.stream().native(), until_open), 0);
  const StepInfo info{0, 0.1F, 1, 1};
  for (BucketId b = 0; b < plan.count(); ++b) updates.finish(b, info);
  for (BucketId b = 0; b + 1 < plan.count(); ++b) updates.finish(b, info);
  EXPECT_FALSE(updates.updated(0).reached()) << "the device is not there yet";
  open = true;
  updates.finish(plan.count() - 1, info);
  EXPECT_EQ(updates.take_skipped(), 0);
  gpu.stream().synchronize();
}

}  // namespace
}  // namespace paceline
