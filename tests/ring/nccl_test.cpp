// SPDX-License-Identifier: Apache-2.0
// sync=nccl, sharded and hierarchical summed by NCCL: on doubles of the CUDA module and of NCCL
// (threads as ranks, tests/support) the same trajectory as sync=ring, with every optimizer and
// format that NCCL takes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/half.h"
#include "ring/ring_backend.h"
#include "tests/ring/gpu_double.h"
#include "tests/ring/ring_steps.h"
#include "tests/support/checkpoint.h"
#include "tests/support/layerwise_reference.h"

namespace paceline {
namespace {

using testing::check_backend;
using testing::conformance_cases;
using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::known_gradient;
using testing::known_initial;
using testing::known_samples;
using testing::nccl_on_double;
using testing::run_backend;

ConformanceCase nccl_case(int world) {
  ConformanceCase test;
  test.config.sync = "nccl";
  test.config.device = "cuda";
  test.config.world = world;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {7, 0, 5000, 1, 64};
  test.optimizer.momentum = 0.5F;
  return test;
}

/// Uneven samples, none of rank 0's in step 1.
StepReport uneven_step(ConformanceWorker& worker, const ConformanceCase& test, int t) {
  const int world = test.config.world;
  StepInfo info{t, test.lr, known_samples(worker.rank, t, world), 0};
  for (int r = 0; r < world; ++r) {
    info.global_samples += known_samples(r, t, world);
  }
  return testing::take_step(
      worker, info, [&](std::size_t j) { return known_gradient(j, worker.rank, t); },
      [](const Range&) {});
}

ConformanceOutcome uneven_steps_or_errors(const Backend& backend, const ConformanceCase& test) {
  return run_backend(backend, test, [&](ConformanceWorker& worker) {
    for (int t = 0; t < test.steps; ++t) {
      uneven_step(worker, test, t);
    }
    worker.synchronizer.quiesce();
    return StepReport{};
  });
}

ConformanceOutcome uneven_steps(const Backend& backend, const ConformanceCase& test) {
  ConformanceOutcome outcome = uneven_steps_or_errors(backend, test);
  expect_no_errors(outcome);
  expect_equal_weights(outcome);
  return outcome;
}

void expect_ring_trajectory(const ConformanceCase& test) {
  const std::vector<float> on_gpu = uneven_steps(nccl_on_double(), test).weights[0];
  const std::vector<float> on_cpu = uneven_steps(ring_backend(), test).weights[0];
  for (std::size_t j = 0; j < on_cpu.size(); ++j) {
    ASSERT_NEAR(on_gpu[j], on_cpu[j], 1e-6F * std::max(1.0F, std::abs(on_cpu[j]))) << j;
  }
}

/// Of the suite's; of the large ones only that of two ranks, and not under ThreadSanitizer.
void expect_conforming(const Config& config) {
#ifdef __SANITIZE_THREAD__
  constexpr int kLargeWorld = 0;
#else
  constexpr int kLargeWorld = 2;
#endif
  for (const ConformanceCase& test : conformance_cases(config, 1, 4)) {
    if (BucketPlan(test.buckets).elements() < 100'000 || test.config.world == kLargeWorld) {
      check_backend(nccl_on_double(), test);
    }
  }
}

TEST(Nccl, Conforms) {
  Config config;
  config.sync = "nccl";
  expect_conforming(config);
}

TEST(Nccl, ConformsShardedAndWithoutOverlap) {
  Config config;
  config.sync = "sharded";
  config.sync_options.overlap = false;
  expect_conforming(config);
}

TEST(Nccl, ConformsByNodesEvenAndUneven) {
  for (const int world : {3, 4, 6}) {
    ConformanceCase test = nccl_case(world);
    test.config.sync = "hierarchical";
    test.config.topology.ranks_per_node = world == 6 ? 3 : 2;
    check_backend(nccl_on_double(), test);
  }
}

TEST(Nccl, FollowsRingWithAdamAndClipping) {
  for (const int world : {1, 3, 4}) {
    for (const bool sharded : {false, true}) {
      ConformanceCase test = nccl_case(world);
      test.config.sync = sharded ? "sharded" : "nccl";
      test.optimizer.kind = OptimizerKind::adam;
      expect_ring_trajectory(test);
      test.optimizer.clip_norm = 0.5F;
      expect_ring_trajectory(test);
      test.optimizer.skip_nonfinite = true;
      expect_ring_trajectory(test);
    }
  }
}

/// Tensors of which shards hold parts, one larger than a piece, and vectors.
ConformanceCase by_tensor(OptimizerKind kind, int world, bool sharded) {
  ConformanceCase test = nccl_case(world);
  test.config.sync = sharded ? "sharded" : "nccl";
  test.buckets = {7, 0, 5000, 1, 64};
  test.tensors = {{{0, 7}, 1, 1},       {{7, 4507}, 9, 4},    {{4507, 5007}, 10, 2},
                  {{5007, 5008}, 1, 1}, {{5008, 5071}, 7, 2}, {{5071, 5072}, 1, 2}};
  test.optimizer.kind = kind;
  test.optimizer.momentum = 0.9F;
  test.optimizer.weight_decay = 0.01F;
  test.optimizer.trust = 0.02F;
  return test;
}

std::vector<double> layerwise_weights(const ConformanceCase& test) {
  const std::size_t n = BucketPlan(test.buckets).elements();
  const int world = test.config.world;
  std::vector<double> w(n);
  std::vector<double> g(n);
  std::vector<double> m(n);
  std::vector<double> v(n);
  for (std::size_t j = 0; j < n; ++j) {
    w[j] = static_cast<double>(known_initial(j));
  }
  for (int t = 0; t < test.steps; ++t) {
    double samples = 0.0;
    for (int r = 0; r < world; ++r) {
      samples += static_cast<double>(known_samples(r, t, world));
    }
    for (std::size_t j = 0; j < n; ++j) {
      g[j] = 0.0;
      for (int r = 0; r < world; ++r) {
        const bool takes_part = known_samples(r, t, world) > 0;
        g[j] += takes_part ? static_cast<double>(known_gradient(j, r, t)) / samples : 0.0;
      }
    }
    for (const TensorRange& tensor : test.tensors) {
      const auto part = [&](std::vector<double>& of) {
        return std::span(of).subspan(tensor.range.begin, tensor.range.size());
      };
      test::reference_layerwise(test.optimizer, t, static_cast<double>(test.lr),
                                tensor.dimensions > 1, part(w), part(g), part(m), part(v));
    }
  }
  return w;
}

TEST(Nccl, LarsAndLambFollowThePapers) {
  for (const OptimizerKind kind : {OptimizerKind::lars, OptimizerKind::lamb}) {
    for (const int world : {1, 3}) {
      for (const bool sharded : {false, true}) {
        const ConformanceCase test = by_tensor(kind, world, sharded);
        const std::vector<double> expected = layerwise_weights(test);
        const std::vector<float> weights = uneven_steps(nccl_on_double(), test).weights[0];
        for (std::size_t j = 0; j < expected.size(); ++j) {
          ASSERT_NEAR(weights[j], expected[j], 1e-5) << j << " of " << world;
        }
      }
    }
  }
}

TEST(Nccl, LarsAndLambFollowRingWithClippingAndScaledLosses) {
  for (const OptimizerKind kind : {OptimizerKind::lars, OptimizerKind::lamb}) {
    for (const bool sharded : {false, true}) {
      ConformanceCase test = by_tensor(kind, 4, sharded);
      test.optimizer.clip_norm = 0.5F;
      expect_ring_trajectory(test);
      test.optimizer.skip_nonfinite = true;
      test.optimizer.nesterov = kind == OptimizerKind::lars;
      expect_ring_trajectory(test);
    }
  }
}

TEST(Nccl, LarsAndLambFollowRingByNodes) {
  for (const OptimizerKind kind : {OptimizerKind::lars, OptimizerKind::lamb}) {
    for (const int world : {3, 4}) {
      ConformanceCase test = by_tensor(kind, world, false);
      test.config.sync = "hierarchical";
      test.config.topology.ranks_per_node = 2;
      expect_ring_trajectory(test);
      test.optimizer.clip_norm = 0.5F;
      expect_ring_trajectory(test);
      test.optimizer.skip_nonfinite = true;
      expect_ring_trajectory(test);
    }
  }
}

TEST(Nccl, LarsAndLambNeedTheTensors) {
  ConformanceCase test = by_tensor(OptimizerKind::lars, 1, false);
  test.tensors.clear();
  const auto outcome = uneven_steps_or_errors(nccl_on_double(), test);
  EXPECT_EQ(outcome.errors.at(0), "optimizer: LARS and LAMB need to know the tensors of the arena");
}

TEST(Nccl, OneBadGradientLeavesTheWholeStepOutEverywhere) {
  for (const bool sharded : {false, true}) {
    ConformanceCase test = nccl_case(3);
    test.config.sync = sharded ? "sharded" : "nccl";
    test.optimizer.skip_nonfinite = true;
    const auto bad_in_step_1 = [](std::size_t j, int r, int t) {
      return t == 1 && r == 2 && j == 5008 ? std::numeric_limits<float>::infinity()
                                           : known_gradient(j, r, t);
    };
    std::atomic<int> skipped = 0;
    const auto run = [&](auto gradient, const std::vector<int>& steps) {
      return run_backend(nccl_on_double(), test, [&](ConformanceWorker& worker) {
        for (const int t : steps) {
          const StepReport report = testing::one_sample_step(worker, t, 3, gradient);
          EXPECT_EQ(report.skipped, t == 2 && steps.size() == 3 ? 1 : 0) << "a step later";
          skipped += report.skipped;
        }
        worker.synchronizer.quiesce();
        return StepReport{};
      });
    };
    const ConformanceOutcome with = run(bad_in_step_1, {0, 1, 2});
    expect_no_errors(with);
    EXPECT_EQ(skipped, 3);
    EXPECT_EQ(with.weights, run(known_gradient, {0, 2}).weights);
  }
}

/// Each rank's gradient is rounded once, their sum once more.
template <typename Round>
std::vector<float> rounded_twice(const ConformanceCase& test, float factor, Round round) {
  std::vector<float> weights(BucketPlan(test.buckets).elements());
  for (std::size_t j = 0; j < weights.size(); ++j) {
    weights[j] = known_initial(j);
    for (int t = 0; t < test.steps; ++t) {
      float sum = 0.0F;
      for (int r = 0; r < test.config.world; ++r) {
        sum += round(known_gradient(j, r, t) / factor);
      }
      weights[j] -= 0.125F * round(sum) * factor / static_cast<float>(test.config.world);
    }
  }
  return weights;
}

TEST(Nccl, GradientsTravelInSixteenBits) {
  for (const bool sharded : {false, true}) {
    for (const std::string wire : {"fp16", "bf16"}) {
      ConformanceCase test = nccl_case(3);
      test.config.sync = sharded ? "sharded" : "nccl";
      test.config.sync_options.wire = wire;
      test.optimizer = {};
      const ConformanceOutcome outcome =
          testing::run_one_sample_steps(nccl_on_double(), test, known_gradient);
      expect_no_errors(outcome);
      expect_equal_weights(outcome);
      const std::vector<float> expected =
          wire == "fp16"
              ? rounded_twice(test, 3.0F, [](float x) { return from_half(to_half(x)); })
              : rounded_twice(test, 1.0F, [](float x) { return from_bfloat(to_bfloat(x)); });
      for (std::size_t j = 0; j < expected.size(); ++j) {
        ASSERT_NEAR(outcome.weights[0][j], expected[j], 2e-4) << wire << " " << j;
      }
    }
  }
}

/// Rank 1's element of step 1 is too large for the format; ranks that do not hold it are told.
ConformanceOutcome one_too_large(const Backend& backend, const ConformanceCase& test) {
  const auto gradient = [](std::size_t j, int r, int t) {
    return t == 1 && r == 1 && j == 5008 ? 1e6F : known_gradient(j, r, t);
  };
  return testing::run_one_sample_steps(backend, test, gradient);
}

TEST(Nccl, AGradientBeyondSixteenBitsIsAnError) {
  for (const bool sharded : {false, true}) {
    for (const int steps : {2, 4}) {  // the last step's is found by quiesce
      ConformanceCase test = nccl_case(3);
      test.config.sync = sharded ? "sharded" : "nccl";
      test.config.sync_options.wire = "fp16";
      test.steps = steps;
      const std::string error =
          ": the mean gradient of bucket 4 is not finite in fp16, whose range ends at 65504: use "
          "bf16 on the wire, lower optimizer.lr, or set precision.loss_scale=dynamic to leave such "
          "steps out";
      int found = 0;
      for (const std::string& text : one_too_large(nccl_on_double(), test).errors) {
        EXPECT_FALSE(text.empty());
        found += text.ends_with(error) ? 1 : 0;
      }
      EXPECT_GE(found, 1);
      test.optimizer.skip_nonfinite = true;
      expect_no_errors(one_too_large(nccl_on_double(), test));
      test.optimizer.skip_nonfinite = false;
      test.config.sync_options.wire = "bf16";
      expect_no_errors(one_too_large(nccl_on_double(), test));
      if (!sharded) {
        test.config.sync_options.wire = "fp16";
        EXPECT_TRUE(one_too_large(ring_backend(), test).errors.at(0).ends_with(error));
      }
    }
  }
}

/// A step, its state kept; another step; a third with the kept state.
std::vector<float> back_to_kept_state(const Backend& backend, const ConformanceCase& test) {
  const auto outcome = run_backend(backend, test, [&](ConformanceWorker& worker) {
    uneven_step(worker, test, 0);
    worker.synchronizer.quiesce();
    testing::Checkpoint checkpoint;
    worker.synchronizer.save(checkpoint);
    uneven_step(worker, test, 1);
    worker.synchronizer.quiesce();
    worker.synchronizer.load(checkpoint);
    uneven_step(worker, test, 2);
    worker.synchronizer.quiesce();
    EXPECT_GT(worker.synchronizer.memory().optimizer, 0U);
    return StepReport{};
  });
  expect_no_errors(outcome);
  return outcome.weights.at(0);
}

TEST(Nccl, SavesAndLoadsTheOptimizersState) {
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::lamb}) {
    ConformanceCase test = by_tensor(kind, 3, false);
    const std::vector<float> expected = back_to_kept_state(ring_backend(), test);
    for (const bool sharded : {false, true}) {
      test.config.sync = sharded ? "sharded" : "nccl";
      const std::vector<float> weights = back_to_kept_state(nccl_on_double(), test);
      for (std::size_t j = 0; j < weights.size(); ++j) {
        ASSERT_NEAR(weights[j], expected[j], 1e-6F) << j;
      }
    }
  }
}

using Checkpoints = std::vector<testing::Checkpoint>;

/// By rank, after a step.
Checkpoints saved(const Backend& backend, const ConformanceCase& test) {
  Checkpoints checkpoints(static_cast<std::size_t>(test.config.world));
  expect_no_errors(run_backend(backend, test, [&](ConformanceWorker& worker) {
    uneven_step(worker, test, 0);
    worker.synchronizer.quiesce();
    worker.synchronizer.save(checkpoints[static_cast<std::size_t>(worker.rank)]);
    return StepReport{};
  }));
  return checkpoints;
}

/// A step of the first weights with that state.
ConformanceOutcome resumed(const Backend& backend, const ConformanceCase& test,
                           Checkpoints& checkpoints) {
  return run_backend(backend, test, [&](ConformanceWorker& worker) {
    worker.synchronizer.load(checkpoints[static_cast<std::size_t>(worker.rank)]);
    uneven_step(worker, test, 1);
    worker.synchronizer.quiesce();
    return StepReport{};
  });
}

void expect_each_goes_on(const Backend& host, const ConformanceCase& test) {
  for (const Backend& before : {host, nccl_on_double()}) {
    Checkpoints checkpoints = saved(before, test);
    const auto on_host = resumed(host, test, checkpoints);
    const auto by_nccl = resumed(nccl_on_double(), test, checkpoints);
    expect_no_errors(on_host);
    expect_no_errors(by_nccl);
    for (std::size_t j = 0; j < on_host.weights[0].size(); ++j) {
      ASSERT_NEAR(by_nccl.weights[0][j], on_host.weights[0][j], 1e-6F) << j;
    }
  }
}

TEST(Nccl, StatesOfTheHostGoOnAndTheOtherWay) {
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adam}) {
    ConformanceCase test = nccl_case(4);
    test.optimizer.kind = kind;
    test.config.device = "cpu";  // of the host's
    test.config.sync = "hierarchical";
    test.config.topology.ranks_per_node = 2;
    expect_each_goes_on(hierarchical_backend(), test);
    test.config.sync = "sharded";
    test.config.world = 1;
    expect_each_goes_on(sharded_backend(), test);
  }
}

TEST(Nccl, ShardsThatAreCutOtherwiseAreRefusedInOneLine) {
  ConformanceCase test = nccl_case(3);
  test.config.device = "cpu";  // of the host's
  test.config.sync = "sharded";
  const auto errors = [&](const Backend& before, const Backend& after) {
    Checkpoints checkpoints = saved(before, test);
    return resumed(after, test, checkpoints).errors;
  };
  EXPECT_EQ(errors(sharded_backend(), nccl_on_double()).at(1),
            "rank 1 of 3: the state is of shards as cuda.collectives = host cuts them (and the "
            "CPU), not nccl");
  EXPECT_EQ(errors(nccl_on_double(), sharded_backend()).at(2),
            "rank 2 of 3: the state is of shards as cuda.collectives = nccl cuts them, not host");
}

}  // namespace
}  // namespace paceline
