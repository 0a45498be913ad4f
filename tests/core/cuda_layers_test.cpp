// SPDX-License-Identifier: Apache-2.0
// The CUDA module's graphs of batch norms and pools as cuDNN plans them, for devices that are only
// described: shapes, strides and attributes that it would not take show here. Nothing is computed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/described_device.h"
#include "tests/support/host_layers.h"

namespace paceline {
namespace {

using test::ampere;
using test::hopper;
using test::Planned;
using NormPlanCase = test::PlannedCase<cuda::BatchNorm>;
using PoolPlanCase = test::PlannedCase<cuda::Pool>;

constexpr Precision kPlannedFormats[] = {Precision::fp32, Precision::bf16, Precision::fp16};

/// What follows a norm.
struct Tail {
  std::int32_t relu;
  std::int32_t addend;
  std::int32_t masks;
};

cuda::BatchNorm norm_of(Precision format, std::int64_t samples, std::int64_t side,
                        std::int64_t channels, const Tail& tail) {
  return {format, tail.relu, tail.addend, tail.masks, samples, side, side, channels, 1e-5F};
}

std::string words_of(const cuda::BatchNorm& s) {
  return fmt::format("format {} {}x{}x{}x{} relu {} addend {} masks {}", static_cast<int>(s.format),
                     s.samples, s.height, s.width, s.channels, s.relu, s.addend, s.masks);
}

TEST(CudaLayers, BatchNormsArePlannedWithoutADevice) {
  const std::vector<NormPlanCase> cases{
      {hopper(), norm_of(Precision::bf16, 256, 112, 64, {1, 0, 1})},
      {hopper(), norm_of(Precision::fp16, 256, 7, 2048, {1, 1, 0})},
      {hopper(), norm_of(Precision::fp32, 3, 4, 8, {1, 0, 1})},
      {ampere(), norm_of(Precision::bf16, 64, 14, 256, {1, 1, 0})},
      {ampere(), norm_of(Precision::fp16, 64, 14, 256, {0, 0, 0})},
      {ampere(), norm_of(Precision::fp32, 5, 1, 72, {1, 0, 1})}};
  const std::vector<Planned> answers = test::planned_elsewhere(&cuda::MathApi::plan_norm, cases);
  if (const std::string why = test::planner_missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(answers[i].status, cuda::kSuccess)
        << words_of(cases[i].shape) << ": " << answers[i].text;
    EXPECT_LE(answers[i].plan.workspace + answers[i].plan.gradient_workspace,
              cuda::kProductWorkspace)
        << words_of(cases[i].shape);
    EXPECT_EQ(test::host_norm_obstacle(cases[i].shape), nullptr);
  }
}

TEST(CudaLayers, WhatTheDoubleRefusesIsNotPlanned) {
  std::vector<NormPlanCase> cases;
  for (const Precision format : kPlannedFormats) {
    cases.push_back({hopper(), norm_of(format, 8, 14, 33, {0, 0, 0})});
    cases.push_back({hopper(), norm_of(format, 8, 14, 64, {0, 1, 0})});
  }
  cases.push_back({ampere(), norm_of(Precision::bf16, 8, 14, 20, {1, 0, 1})});
  cases.push_back({ampere(), norm_of(Precision::fp32, 8, 14, 6, {1, 0, 1})});
  const std::vector<Planned> answers = test::planned_elsewhere(&cuda::MathApi::plan_norm, cases);
  if (const std::string why = test::planner_missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_NE(answers[i].status, cuda::kSuccess) << words_of(cases[i].shape);
    EXPECT_NE(std::string(answers[i].text).find("planning a batch norm"), std::string::npos)
        << answers[i].text;
    EXPECT_NE(test::host_norm_obstacle(cases[i].shape), nullptr);
  }
}

TEST(CudaLayers, PoolsArePlannedWithoutADevice) {
  constexpr auto kMaximum = cuda::Pooling::maximum;
  constexpr auto kMean = cuda::Pooling::average;
  const std::vector<PoolPlanCase> cases{
      {hopper(), {Precision::bf16, kMaximum, 256, 112, 112, 64, 56, 56, 3, 3, 2, 1}},
      {hopper(), {Precision::bf16, kMean, 256, 7, 7, 2048, 1, 1, 7, 7, 1, 0}},
      {hopper(), {Precision::fp16, kMaximum, 2, 5, 7, 33, 2, 3, 2, 2, 2, 0}},
      {ampere(), {Precision::fp32, kMaximum, 3, 9, 8, 5, 5, 4, 3, 3, 2, 1}},
      {ampere(), {Precision::fp32, kMean, 3, 3, 4, 35, 1, 1, 3, 4, 1, 0}}};
  const std::vector<Planned> answers = test::planned_elsewhere(&cuda::MathApi::plan_pool, cases);
  if (const std::string why = test::planner_missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(answers[i].status, cuda::kSuccess)
        << i << " "
        << "format " << static_cast<int>(cases[i].shape.format) << ": " << answers[i].text;
  }
}

}  // namespace
}  // namespace paceline
