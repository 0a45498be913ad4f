// SPDX-License-Identifier: Apache-2.0
// The CUDA module's graphs of fused attention as cuDNN plans them, for devices that are only
// described: shapes, strides and attributes that it would not take show here. Nothing is computed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/described_device.h"

namespace paceline {
namespace {

using test::ampere;
using test::hopper;
using test::Planned;
using Case = test::PlannedCase<cuda::Attention>;

std::vector<Planned> planned(const std::vector<Case>& cases) {
  return test::planned_elsewhere(&cuda::MathApi::plan_attention, cases);
}

constexpr cuda::Attention kGpt2{Precision::bf16, 1, 8, 12, 1024, 64, 0.125F, 1};

cuda::Attention gpt2_with(Precision format, std::int32_t causal, std::int64_t positions,
                          std::int64_t width) {
  cuda::Attention shape = kGpt2;
  shape.format = format;
  shape.causal = causal;
  shape.positions = positions;
  shape.width = width;
  return shape;
}

cuda::Attention of_any_order(cuda::Attention shape) {
  shape.equal_bits = 0;
  return shape;
}

TEST(CudaAttention, IsPlannedWithoutADevice) {
  const std::vector<Case> cases{{hopper(), kGpt2},
                                {hopper(), of_any_order(gpt2_with(Precision::fp16, 0, 100, 128))},
                                {ampere(), of_any_order(kGpt2)}};
  const std::vector<Planned> answers = planned(cases);
  if (const std::string why = test::planner_missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Planned& answer = answers[i];
    EXPECT_EQ(answer.status, cuda::kSuccess) << i << ": " << answer.text;
    const cuda::Attention& shape = cases[i].shape;
    const auto rows = static_cast<std::size_t>(shape.samples * shape.heads * shape.positions);
    EXPECT_LT(answer.plan.workspace, rows * sizeof(float)) << "forward keeps no shares";
    // Equal bits want dS, else dQ's sums in fp32, on Ampere twice; and a few numbers for each row.
    const auto each =
        static_cast<std::size_t>(shape.equal_bits != 0 ? 2 * shape.positions : 4 * shape.width);
    EXPECT_GE(answer.plan.gradient_workspace, rows * each);
    EXPECT_LE(answer.plan.gradient_workspace, rows * (2 * each + 64));
  }
}

TEST(CudaAttention, WhatIsNotFusedHasAReason) {
  const std::vector<Case> cases{{hopper(), gpt2_with(Precision::fp32, 1, 64, 64)},
                                {hopper(), gpt2_with(Precision::bf16, 1, 64, 60)},
                                {hopper(), gpt2_with(Precision::bf16, 1, 1, 64)},
                                {ampere(), of_any_order(gpt2_with(Precision::bf16, 1, 64, 264))},
                                {ampere(), kGpt2}};
  const char* const reasons[] = {"bf16 and fp16", "heads of 60 channels", "one position",
                                 "no kernel", "compute capability 9 only"};
  const std::vector<Planned> answers = planned(cases);
  if (const std::string why = test::planner_missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_NE(answers[i].status, cuda::kSuccess);
    EXPECT_NE(std::string(answers[i].text).find(reasons[i]), std::string::npos) << answers[i].text;
  }
}

}  // namespace
}  // namespace paceline
