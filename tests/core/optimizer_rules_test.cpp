// SPDX-License-Identifier: Apache-2.0
// The optimizers' rules applied by many lanes at once, as a GPU's one launch does, against
// Optimizer: the same bits, whatever the number of elements.
#include "common/core/optimizer_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "common/core/optimizer.h"
#include "common/core/optimizer_tensors.h"
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
          GetParam(), info, [n](const auto& rule) {
            test::for_each_in_packs_by_lanes(static_cast<std::int64_t>(n), rule);
          });
      ASSERT_EQ(weights, expected) << n << " elements, step " << step;
    }
  }
}

TEST_P(OptimizerRules, PacksOfAnyAlignmentLeaveEverythingOrGiveTheBits) {
  constexpr std::size_t kElements = 101;
  const auto weights = test::values(1, kElements + 8);
  const auto gradient = test::values(2, kElements + 8);
  for (const std::size_t shift : {std::size_t{0}, std::size_t{1}, std::size_t{4}}) {
    for (const float squares :
         {1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Optimizer optimizer(GetParam(), kElements);
      const UpdateInfo info{0, 0.05F, 0.5F};
      std::vector<float> expected(kElements + 8, 7.0F);
      if (std::isfinite(squares)) {
        optimizer.apply(0, std::span(weights).subspan(shift, kElements),
                        std::span(expected).subspan(shift, kElements),
                        std::span(gradient).subspan(shift, kElements), info);
      }
      for (const std::size_t other : {shift, std::size_t{2}}) {
        std::vector<float> out(kElements + 8, 7.0F);
        std::vector<float> moments(2 * kElements + 16);
        kernels::UpdateOperands at{weights.data() + shift, out.data() + shift,
                                   gradient.data() + shift, moments.data() + other,
                                   moments.data() + kElements + 8 + other};
        at.squares = &squares;
        kernels::with_guarded_update_rule(at, GetParam(), info, [](const auto& rule) {
          kernels::for_each_in_packs(kElements, rule);
        });
        EXPECT_EQ(out, expected) << shift << " " << other << " " << squares;
      }
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
