// SPDX-License-Identifier: Apache-2.0
// LARS and LAMB of a GPU against those of the CPU, on whatever module is given: a double on the
// host or a real GPU.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "common/core/arena_optimizer.h"
#include "common/core/gpu/gpu_optimizer.h"
#include "tests/core/inputs.h"

namespace paceline::test {

/// Tensors of many pieces, of one, and of one element; an empty bucket.
inline BucketPlan layerwise_plan() {
  BucketPlan plan(std::vector<std::size_t>{40'000, 0, 333});
  plan.set_tensors(
      {{{0, 64}, 1, 1}, {{64, 39'999}, 7, 4}, {{39'999, 40'000}, 1, 2}, {{40'000, 40'333}, 3, 2}});
  return plan;
}

inline void expect_same_layerwise(Gpu& gpu, OptimizerKind kind, double most) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.momentum = 0.9F;
  spec.weight_decay = 0.01F;
  spec.trust = 0.02F;
  const BucketPlan plan = layerwise_plan();
  ArenaOptimizer cpu(spec, plan);
  OwnRanges own;
  for (BucketId b = 0; b < plan.count(); ++b) {
    own.push_back({plan[b]});
  }
  GpuOptimizer optimizer(gpu, gpu.stream(), spec, plan, own, {.counted = {{0, plan.elements()}}});
  std::vector<float> expected = values(1, plan.elements());
  const auto weights = gpu.allocate(plan.elements(), "weights");
  const auto gradients = gpu.allocate(plan.elements(), "gradients");
  gpu.upload(expected, weights->values());
  for (int step = 0; step < 10; ++step) {
    std::vector<float> gradient = values(20 + static_cast<std::uint64_t>(step), plan.elements());
    gpu.upload(gradient, gradients->values());
    optimizer.find_squares(weights->values(), gradients->values(), 0.25F);
    optimizer.ratios()->find(0.25F);
    for (BucketId b = 0; b < plan.count(); ++b) {
      optimizer.update(b, weights->values(), gradients->values(), 0.1F, 0.25F);
    }
    gpu.stream().synchronize();
    ASSERT_TRUE(cpu.apply(expected, gradient, 0.1F, 0.25F));
  }
  std::vector<float> found(expected.size());
  gpu.download(weights->values(), found);
  EXPECT_LE(relative_error(found, widen(expected)), most);
}

inline void expect_same_layerwise(Gpu& gpu, double most) {
  expect_same_layerwise(gpu, OptimizerKind::lars, most);
  expect_same_layerwise(gpu, OptimizerKind::lamb, most);
}

}  // namespace paceline::test
