// SPDX-License-Identifier: Apache-2.0
// What synchronous training must give, written as plainly as possible: one loop per element in the
// order of common/sync/reduction_order.h, one optimizer over the whole arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/core/optimizer.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/reduction_order.h"

namespace paceline::testing {

/// Rank r's gradient of element i in a step: no two are alike, and sums are inexact in fp32.
inline float test_gradient(std::int64_t step, int rank, std::size_t i) {
  const auto mixed = static_cast<std::uint64_t>(step) * 7919U +
                     static_cast<std::uint64_t>(rank) * 104729U + i * 2654435761U;
  return static_cast<float>(mixed % 20011U) * 1.37e-4F - 1.3F;
}

inline std::int64_t test_samples(std::int64_t step, int rank) {
  return 3 + (step + 2 * rank) % 5;
}

inline float test_rate(std::int64_t step) {
  return 0.05F / static_cast<float>(1 + step);
}

/// Weights after `steps` synchronous steps of `world` ranks with the gradients above.
inline std::vector<float> reference_weights(const BucketPlan& plan, int world, std::int64_t steps,
                                            const OptimizerSpec& spec,
                                            std::span<const float> init) {
  std::vector<float> weights(init.begin(), init.end());
  std::vector<float> sum(plan.elements());
  Optimizer optimizer(spec, plan.elements());
  for (std::int64_t step = 0; step < steps; ++step) {
    std::int64_t samples = 0;
    for (int rank = 0; rank < world; ++rank) {
      samples += test_samples(step, rank);
    }
    for (BucketId b = 0; b < plan.count(); ++b) {
      const Range bucket = plan[b];
      for (int c = 0; c < world; ++c) {
        const Range chunk = ring_chunk(bucket.size(), world, c);
        for (std::size_t j = chunk.begin; j < chunk.end; ++j) {
          const std::size_t i = bucket.begin + j;
          sum[i] = test_gradient(step, ring_summand(world, c, 0), i);
          for (int k = 1; k < world; ++k) {
            sum[i] += test_gradient(step, ring_summand(world, c, k), i);
          }
        }
      }
    }
    optimizer.apply(0, weights, weights, sum,
                    {step, test_rate(step), 1.0F / static_cast<float>(samples)});
  }
  return weights;
}

}  // namespace paceline::testing
