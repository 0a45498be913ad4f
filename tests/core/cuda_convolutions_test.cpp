// SPDX-License-Identifier: Apache-2.0
// The CUDA module's graphs of convolutions as cuDNN plans them for devices that are only described:
// every shape that the models have, in all directions, and that what is chosen gives equal bits and
// sums in fp32. Nothing is computed.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/core/resnet.h"
#include "tests/core/described_device.h"

namespace paceline {
namespace {

using test::ampere;
using test::hopper;
using test::Planned;
using ConvPlanCase = test::PlannedCase<cuda::Convolution>;

// Of cudnnBackendNumericalNote_t.
constexpr std::uint32_t kTensorCore = 1U << 0;
constexpr std::uint32_t kDownConverted = 1U << 1;
constexpr std::uint32_t kReducedSums = 1U << 2;
constexpr std::uint32_t kNondeterministic = 1U << 4;

std::string words_of(const ConvPlanCase& c) {
  const cuda::Convolution& s = c.shape;
  return fmt::format("{} format {} tf32 {} {}x{} stride {} padding {} of {}x{}x{}x{} to {}",
                     &c.device == &hopper() ? "H100" : "A100", static_cast<int>(s.format), c.tf32,
                     s.kernel, s.kernel, s.stride, s.padding, s.samples, s.height, s.width,
                     s.channels, s.outputs);
}

/// Distinct shapes of one model's convolutions, each after the other.
class ModelConvolutions {
 public:
  ModelConvolutions(std::int64_t samples, std::int64_t side, std::int64_t channels)
      : samples_(samples), side_(side), channels_(channels) {}

  /// Adds one; with `leads` its output is the next one's input.
  void add(std::int32_t kernel, std::int32_t stride, std::int32_t padding, std::int64_t outputs,
           bool leads = true) {
    const cuda::Convolution s{Precision::fp32, kernel, stride,    padding, samples_,
                              side_,           side_,  channels_, outputs};
    shapes_.try_emplace(
        std::vector<std::int64_t>{kernel, stride, padding, side_, channels_, outputs}, s);
    if (leads) {
      side_ = (side_ + 2 * padding - kernel) / stride + 1;
      channels_ = outputs;
    }
  }
  void pool() { side_ = (side_ + 1) / 2; }
  void blocks(const ResNetPlan& plan) {
    std::int64_t width = plan.width;
    for (std::size_t stage = 0; stage < plan.blocks.size(); ++stage, width *= 2) {
      for (int b = 0; b < plan.blocks[stage]; ++b) {
        block(plan.bottleneck, width, stage > 0 && b == 0 ? 2 : 1);
      }
    }
  }
  void append_to(std::vector<cuda::Convolution>& all) const {
    for (const auto& [key, shape] : shapes_) {
      all.push_back(shape);
    }
  }

 private:
  void block(bool bottleneck, std::int64_t width, std::int32_t stride) {
    const std::int64_t outputs = bottleneck ? 4 * width : width;
    if (stride != 1 || channels_ != outputs) {
      add(1, stride, 0, outputs, false);
    }
    if (bottleneck) {
      add(1, 1, 0, width);
      add(3, stride, 1, width);
      add(1, 1, 0, outputs);
    } else {
      add(3, stride, 1, width);
      add(3, 1, 1, outputs);
    }
  }

  std::int64_t samples_;
  std::int64_t side_;
  std::int64_t channels_;
  std::map<std::vector<std::int64_t>, cuda::Convolution> shapes_;
};

std::vector<cuda::Convolution> of_all_models() {
  std::vector<cuda::Convolution> all;
  ModelConvolutions resnet50(64, 224, 3);
  resnet50.add(7, 2, 3, 64);
  resnet50.pool();
  resnet50.blocks(resnet_plan("resnet50"));
  resnet50.append_to(all);
  EXPECT_EQ(all.size(), 23U);
  ModelConvolutions resnet20(128, 32, 3);
  resnet20.add(3, 1, 1, 16);
  resnet20.blocks(resnet_plan("resnet20"));
  resnet20.append_to(all);
  EXPECT_EQ(all.size(), 23U + 8U);
  for (const auto& [side, channels] : {std::pair{28, 1}, std::pair{32, 3}, std::pair{8, 2}}) {
    for (const std::int64_t samples : {1, 50}) {
      ModelConvolutions cnn(samples, side, channels);
      cnn.add(3, 1, 0, 32);
      cnn.add(3, 1, 0, 64);
      cnn.append_to(all);
    }
  }
  return all;
}

/// Of every shape on either device: in bf16, fp16 and fp32, in this without and with TF32.
std::vector<ConvPlanCase> all_cases(const std::vector<cuda::Convolution>& shapes) {
  std::vector<ConvPlanCase> cases;
  for (cuda::Convolution shape : shapes) {
    for (const std::string* device : {&hopper(), &ampere()}) {
      for (const Precision format : {Precision::fp32, Precision::bf16, Precision::fp16}) {
        shape.format = format;
        cases.push_back({*device, shape});
      }
      shape.format = Precision::fp32;
      cases.push_back({*device, shape, true});
    }
  }
  return cases;
}

void expect_allowed(const ConvPlanCase& c, const Planned& answer) {
  ASSERT_EQ(answer.status, cuda::kSuccess) << words_of(c) << ": " << answer.text;
  const bool strict = c.shape.format == Precision::fp32 && !c.tf32;
  const std::uint32_t refused =
      kDownConverted | kReducedSums | kNondeterministic | (strict ? kTensorCore : 0U);
  EXPECT_EQ(answer.plan.notes & refused, 0U) << words_of(c) << ": " << answer.plan.notes;
  const cuda::Convolution& s = c.shape;
  const auto filter_bytes =
      sizeof(float) * static_cast<std::size_t>(s.outputs * s.kernel * s.kernel * s.channels);
  EXPECT_GE(answer.plan.gradient_workspace / filter_bytes,
            static_cast<std::size_t>(answer.plan.slices - 1))
      << words_of(c) << ": sums are added in the gradient itself";
  EXPECT_LE(answer.plan.workspace, cuda::kMostConvolutionWorkspace) << words_of(c);
  EXPECT_LE(answer.plan.gradient_workspace, cuda::kMostConvolutionWorkspace) << words_of(c);
}

TEST(CudaConvolutions, OfEveryModelArePlannedWithoutADevice) {
  const std::vector<ConvPlanCase> cases = all_cases(of_all_models());
  const std::vector<Planned> answers =
      test::planned_elsewhere(&cuda::MathApi::plan_convolution, cases);
  if (const std::string why = test::planner_missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  int on_tensor_cores = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_allowed(cases[i], answers[i]);
    on_tensor_cores += (answers[i].plan.notes & kTensorCore) != 0 ? 1 : 0;
  }
  EXPECT_GE(on_tensor_cores, static_cast<int>(cases.size()) / 2);
}

TEST(CudaConvolutions, OddChannelsArePlannedToo) {
  const std::vector<ConvPlanCase> cases = all_cases({{Precision::fp32, 5, 1, 2, 2, 6, 5, 1, 7},
                                                     {Precision::fp32, 3, 2, 1, 3, 9, 7, 5, 3},
                                                     {Precision::fp32, 1, 1, 0, 1, 1, 1, 33, 1}});
  const std::vector<Planned> answers =
      test::planned_elsewhere(&cuda::MathApi::plan_convolution, cases);
  if (const std::string why = test::planner_missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_allowed(cases[i], answers[i]);
  }
}

TEST(CudaConvolutions, OneThatIsNoneIsRefusedByName) {
  const std::vector<ConvPlanCase> cases{{hopper(), {Precision::bf16, 7, 1, 0, 2, 4, 4, 8, 16}}};
  const Planned answer = test::planned_elsewhere(&cuda::MathApi::plan_convolution, cases).front();
  if (const std::string why = test::planner_missing(answer); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  EXPECT_NE(answer.status, cuda::kSuccess);
  EXPECT_NE(std::string(answer.text).find("cuDNN: "), std::string::npos) << answer.text;
}

}  // namespace
}  // namespace paceline
