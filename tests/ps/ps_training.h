// SPDX-License-Identifier: Apache-2.0
// Short trainings of the parameter server with made-up gradients.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/ps/ps_cluster.h"
#include "tests/ps/ring_order_reference.h"

namespace paceline::testing {

inline const std::vector<std::size_t> kBuckets{5, 0, 70'001, 1, 400'000};

inline Config make_config(int world, int servers) {
  Config config;
  config.sync = "ps";
  config.world = world;
  config.ps.servers = servers;
  config.comm.timeout = std::chrono::seconds(20);
  return config;
}

inline OptimizerSpec momentum_sgd() {
  OptimizerSpec spec;
  spec.momentum = 0.9F;
  spec.weight_decay = 1e-3F;
  return spec;
}

/// Matrices that keys of two servers cut, the last one of `rows` rows, and vectors beside them.
inline BucketPlan plan_with_tensors(std::int64_t rows) {
  const auto last = static_cast<std::size_t>(100 * rows);
  BucketPlan plan(std::vector<std::size_t>{5, 0, 20'001, 1, last});
  plan.set_tensors({{{0, 5}, 1, 1},
                    {{5, 19'005}, 190, 2},
                    {{19'005, 20'006}, 1, 1},
                    {{20'006, 20'007}, 1, 1},
                    {{20'007, 20'007 + last}, rows, 2}});
  return plan;
}

inline std::vector<float> initial_weights(std::size_t n) {
  std::vector<float> init(n);
  for (std::size_t i = 0; i < n; ++i) {
    init[i] = static_cast<float>(i % 1013) * 1e-3F - 0.5F;
  }
  return init;
}

/// A rank's gradient of an element in a step.
using GradientOf = float (*)(std::int64_t step, int rank, std::size_t i);

/// One step as the trainer drives the seam.
inline StepReport drive_step(Synchronizer& sync, const ReplicaView& view, const BucketPlan& plan,
                             std::int64_t step, int rank, int world,
                             GradientOf gradient = test_gradient) {
  Stream stream;
  const Event done;
  StepInfo info{step, test_rate(step), test_samples(step, rank), 0};
  for (int r = 0; r < world; ++r) {
    info.global_samples += test_samples(step, r);
  }
  sync.begin_step(info);
  for (BucketId b = plan.count(); b-- > 0;) {
    sync.parameters_needed(b, stream);
  }
  for (BucketId b = 0; b < plan.count(); ++b) {
    for (std::size_t i = plan[b].begin; i < plan[b].end; ++i) {
      view.gradients[i] = gradient(step, rank, i);
    }
    sync.gradient_ready(b, done);
  }
  return sync.commit();
}

/// The weights of every rank after `steps` steps and a quiesce.
inline std::vector<std::vector<float>> train(const Backend& backend, const Config& config,
                                             const BucketPlan& plan, const OptimizerSpec& spec,
                                             std::int64_t steps, NicFabric* fabric = nullptr) {
  const auto init = initial_weights(plan.elements());
  std::vector<std::vector<float>> result(static_cast<std::size_t>(config.world));
  AbortToken abort;
  run_ps_job(backend, config, fabric, abort, [&](Synchronizer& sync, int rank) {
    Device device;
    // Only rank 0's weights count: the others' must be replaced.
    const ReplicaView view = sync.bind(plan, device, spec, init);
    for (std::int64_t step = 0; step < steps; ++step) {
      drive_step(sync, view, plan, step, rank, config.world);
    }
    sync.quiesce();
    result[static_cast<std::size_t>(rank)].assign(view.weights.begin(), view.weights.end());
  });
  return result;
}

inline void expect_same_bits(const std::vector<float>& expected, const std::vector<float>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::memcmp(&expected[i], &actual[i], sizeof(float)), 0)
        << "element " << i << ": " << expected[i] << " and " << actual[i];
  }
}

}  // namespace paceline::testing
