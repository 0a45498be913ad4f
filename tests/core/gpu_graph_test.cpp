// SPDX-License-Identifier: Apache-2.0
// CUDA graphs of steps, on the host's double of the module: that they are launched when they may be
// and that they do what was recorded. No GPU's result.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "common/base/error.h"
#include "common/core/gpu/gpu_graph.h"
#include "tests/core/graph_checks.h"
#include "tests/support/host_log.h"
#include "tests/support/host_module.h"
#include "tests/support/host_streams.h"

namespace paceline {
namespace {

const CudaModule& graph_module() {
  static const CudaModule module(test::host_module());
  return module;
}

/// The loss's two sums and its copy to the host, and the batch's copy to the device.
constexpr std::int64_t kBesides = 4;

test::GraphCase small_cnn(std::vector<test::GraphStep> steps, bool hooked = false) {
  return {"cnn", {8, 8, 1}, 10, {}, std::move(steps), hooked};
}

std::vector<std::int64_t> launches(const test::GraphCase& job) {
  Gpu gpu(graph_module(), {.graphs = true});
  return test::run_steps(gpu, job, test::host_launches).launches;
}

/// Steps whose forward and backward were a graph each.
std::string launched_whole(const std::vector<test::GraphStep>& steps) {
  std::string text;
  for (const std::int64_t launched : launches(small_cnn(steps))) {
    text += launched == kBesides + 2 ? 'g' : '-';
  }
  return text;
}

TEST(GpuGraphs, StepsGiveTheBitsOfPlainSteps) {
  test::expect_same_bits_with_graphs(graph_module());
  EXPECT_EQ(test::host_module_bytes(), 0U);
}

TEST(GpuGraphs, AKnownStepIsAGraphForEachSegment) {
  const std::vector<test::GraphStep> steps(6, {3});
  EXPECT_EQ(launched_whole(steps), "--gggg") << "a batch has one of two places";
  Gpu plain(graph_module(), {});
  const auto kernels = test::run_steps(plain, small_cnn(steps), test::host_launches).launches;
  EXPECT_GT(kernels.back(), 20);
  // A cnn has six layers: after the backward of three of them the hooks mark a point.
  const auto hooked = launches(small_cnn(steps, true));
  EXPECT_EQ(hooked.front(), kernels.front());
  EXPECT_EQ(hooked.back(), kBesides + 1 + 3);
}

TEST(GpuGraphs, EachBatchSizeAndLossScaleIsRecordedAnew) {
  EXPECT_EQ(launched_whole({{3}, {3}, {3}, {3}, {2}, {2}, {3}, {3}, {2}, {2}}), "--gg--gggg");
  const test::GraphStep scaled{3, 2.0F};
  EXPECT_EQ(launched_whole({{3}, {3}, scaled, scaled, {3}, {3}, scaled, scaled}), "----gggg");
}

TEST(GpuGraphs, WhatMemoryThatGrewHeldIsRecordedAnew) {
  std::vector<test::GraphStep> steps(12, {2});
  steps[4] = {3};
  steps[5] = {3};
  const std::string text = launched_whole(steps);
  EXPECT_EQ(text.substr(0, 6) + text.substr(8), "--gg--gggg") << "batches may have moved";
}

TEST(GpuGraphs, TheLongestUnusedStepIsForgotten) {
  const auto scales = [](int count) {
    std::vector<test::GraphStep> steps;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < count; ++i) {
        steps.insert(steps.end(), 2, {2, static_cast<float>(1 << i)});
      }
    }
    return launched_whole(steps);
  };
  EXPECT_EQ(scales(4), "--------gggggggggggggggg") << "eight keys";
  EXPECT_EQ(scales(5), std::string(30, '-')) << "ten keys";
}

/// A step's waits and marks in their order, without graphs and with.
TEST(GpuGraphs, WaitsAndMarksKeepTheirOrder) {
  const auto calls = [](bool graphs) {
    Gpu gpu(graph_module(), {.graphs = graphs});
    test::host_log().start();
    static_cast<void>(test::run_steps(gpu, small_cnn(std::vector<test::GraphStep>(6, {3}), true)));
    std::string text;
    std::int64_t launched = 0;
    for (const test::HostCall& call : test::host_log().take()) {
      if (call.what == "graph") {
        ++launched;
        continue;
      }
      text += std::string(call.what) + (call.stream == gpu.stream().native() ? " " : "' ");
    }
    EXPECT_EQ(launched, graphs ? 4 * 4 : 0);
    return text;
  };
  EXPECT_EQ(calls(true), calls(false));
}

TEST(GpuGraphs, AGraphRepeatsWhatWasRecorded) {
  Gpu gpu(graph_module(), {});
  const auto values = gpu.allocate(4, "a test");
  const auto first = [&] {
    std::vector<float> host(4);
    gpu.download(values->values(), host);
    return host[0];
  };
  gpu.upload(std::vector<float>{0.0F, 1.0F, 0.0F, 0.0F}, values->values());
  GpuCapture capture(gpu);
  gpu.each(1,
           kernels::AddScaled{values->values().data(), values->values().data() + 1,
                              values->values().data(), 1.0F},
           "a test");
  const GpuGraph graph = capture.end();
  EXPECT_EQ(first(), 0.0F);
  graph.launch();
  graph.launch();
  EXPECT_EQ(first(), 2.0F);
}

template <typename Work>
std::string error_in_capture(const Work& work) {
  Gpu gpu(graph_module(), {});
  GpuCapture capture(gpu);
  std::string text;
  try {
    work(gpu);
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_THROW(static_cast<void>(capture.end()), Error) << "broken by what was refused";
  EXPECT_NO_THROW(gpu.stream().synchronize()) << "the stream is as before";
  return text;
}

/// As CUDA does; the double would not be worth much if it let a host wait for what only a graph
/// has.
TEST(GpuGraphs, TheDoubleRefusesWhatACaptureCannotHold) {
  const std::string refused = "operation not permitted when stream is capturing";
  for (const std::string& text : {
           error_in_capture([](Gpu& gpu) { gpu.stream().synchronize(); }),
           error_in_capture([](Gpu& gpu) { const GpuMemory memory(gpu, 8, "a test"); }),
           error_in_capture([](Gpu& gpu) { gpu.stream().record(*gpu.make_event()); }),
           error_in_capture([](Gpu& gpu) { gpu.stream().wait(*gpu.make_event()); }),
           error_in_capture([](Gpu& gpu) {
             std::vector<float> host(1);
             gpu.download(host, host);
           }),
       }) {
    EXPECT_NE(text.find(refused), std::string::npos) << text;
  }
}

std::atomic<bool>& rows_fail() {
  static std::atomic<bool> fail = false;
  return fail;
}

TEST(GpuGraphs, AStepThatCannotBeRecordedIsOneError) {
  cuda::Api table = test::host_module();
  table.rows = [](int id, const void* functor, std::int64_t n, void* stream) {
    const int refused = rows_fail() ? test::refuse_in_capture() : cuda::kSuccess;
    return refused != cuda::kSuccess ? refused : test::host_module().rows(id, functor, n, stream);
  };
  const CudaModule module(table);
  Gpu gpu(module, {.graphs = true});
  rows_fail() = true;
  try {
    static_cast<void>(test::run_steps(gpu, small_cnn(std::vector<test::GraphStep>(4, {2}))));
    FAIL() << "the second step of a kind is recorded";
  } catch (const Error& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "while a step was recorded (cuda.graph = true): CUDA: softmax: operation not permitted "
        "when stream is capturing");
  }
  rows_fail() = false;
  const auto run =
      test::run_steps(gpu, small_cnn(std::vector<test::GraphStep>(6, {2})), test::host_launches);
  EXPECT_EQ(run.launches.back(), kBesides + 2) << "the Gpu is as good as before";
}

}  // namespace
}  // namespace paceline
