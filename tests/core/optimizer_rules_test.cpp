// SPDX-License-Identifier: Apache-2.0
// The optimizers' rules applied by many lanes at once, as a GPU's one launch does, against
// Optimizer: the same bits, whatever the number of elements.
#include "common/core/optimizer_rules.h"

#include <gtest/gtest.h>

#include "common/core/optimizer.h"
#include "tests/core/inputs.h"
#include "tests/core/thread_lanes.h"

namespace paceline {
namespace {

class OptimizerRules : public testing::TestWithParam<OptimizerSpec> {};

TEST_P(OptimizerRules, LanesGiveTheBitsOfTheOptimizer) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1003}}) {
    Optimizer optimizer(GetParam(), n);
    std::vector<float> expected = test::values(1, n);
    std::vector<float> weights = expected;
    std::vector<float> moment1(n);
    std::vector<float> moment2(n);
    for (int step = 0; step < 5; ++step) {
      const auto gradient = test::values(10 + static_cast<std::uint64_t>(step), n, 100.0F);
      const UpdateInfo info{step, 0.05F, 1.0F / 7.0F};
      optimizer.apply(0, expected, expected, gradient, info);
      kernels::with_update_rule(
          {weights.data(), weights.data(), gradient.data(), moment1.data(), moment2.data()},
          GetParam(), info,
          [n](const auto& rule) { test::for_each_by_lanes(static_cast<std::int64_t>(n), rule); });
      ASSERT_EQ(weights, expected) << n << " elements, step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, OptimizerRules,
    testing::Values(OptimizerSpec{}, OptimizerSpec{.weight_decay = 1e-3F},
                    OptimizerSpec{.momentum = 0.9F, .weight_decay = 1e-3F},
                    OptimizerSpec{.nesterov = true, .momentum = 0.9F, .weight_decay = 1e-3F},
                    OptimizerSpec{.kind = OptimizerKind::adam, .weight_decay = 1e-3F}));

}  // namespace
}  // namespace paceline
