// SPDX-License-Identifier: Apache-2.0
// The CUDA module's graphs of fused attention as cuDNN plans them, for devices that are only
// described: shapes, strides and attributes that it would not take show here. Nothing is computed.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/core/cuda/abi.h"
#include "common/core/cuda_libraries.h"

namespace paceline {
namespace {

/// As cuDNN writes a device's properties, of which only some differ.
std::string described(int capability, int multiprocessors, int shared_memory, int l2_cache) {
  return fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,)"
      R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
      R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
      R"("totalGlobalMem":85017493504,"smClockRateKHz":1410000,"memClockRateKHz":1593000,)"
      R"("l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,)"
      R"("deviceName":"described"}})",
      multiprocessors, shared_memory, l2_cache, capability);
}

const std::string& hopper() {
  static const std::string json = described(900, 132, 232448, 52428800);
  return json;
}

const std::string& ampere() {
  static const std::string json = described(800, 108, 166912, 41943040);
  return json;
}

struct Case {
  const std::string& device;
  cuda::Attention shape;
};

struct Answer {
  int status = -1;
  cuda::AttentionPlan plan{};
  char text[512] = {};
};

Answer ask(const cuda::Api& api, const std::string& dnn, const Case& what) {
  Answer answer;
  const cuda::MathOptions options{0, nullptr, dnn.c_str()};
  answer.status = api.math.plan_attention(&options, what.device.c_str(), &what.shape, &answer.plan);
  if (answer.status != cuda::kSuccess) {
    std::strncpy(answer.text, api.error_text(answer.status), sizeof answer.text - 1);
  }
  return answer;
}

/// In a process of its own, where the driver is the double.
std::vector<Answer> planned_elsewhere(const std::vector<Case>& cases) {
  const std::string dnn = CudaLibraries().dnn();
  int ends[2] = {};
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    void* const driver = dlopen(PACELINE_MADE_UP_DRIVER, RTLD_NOW | RTLD_GLOBAL);
    void* const module = dlopen(PACELINE_CUDA_MODULE_FOLDER "/libpaceline_cuda.so", RTLD_NOW);
    if (driver == nullptr || module == nullptr) {
      _exit(1);
    }
    const cuda::Api& api = *reinterpret_cast<cuda::EntryPoint*>(dlsym(module, cuda::kEntryPoint))();
    for (const Case& what : cases) {
      const Answer answer = ask(api, dnn, what);
      if (write(ends[1], &answer, sizeof answer) != sizeof answer) {
        _exit(1);
      }
    }
    _exit(0);
  }
  close(ends[1]);
  std::vector<Answer> answers(cases.size());
  for (Answer& answer : answers) {
    if (read(ends[0], &answer, sizeof answer) != sizeof answer) {
      answer.status = -1;
    }
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return answers;
}

/// Why cuDNN cannot be asked here, which is no failure of ours; empty where it can.
std::string missing(const Answer& answer) {
  if (void* const real = dlopen("libcuda.so.1", RTLD_NOW); real != nullptr) {
    return "this machine has a driver, in whose place no double can be";
  }
  const std::string text = answer.text;
  const bool none = answer.status == cuda::kNoLibrary ||
                    text.find("PREREQUISITE_MISSING") != std::string::npos ||
                    text.find("too old") != std::string::npos;
  return none ? text : "";
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
  const std::vector<Answer> answers = planned_elsewhere(cases);
  if (const std::string why = missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Answer& answer = answers[i];
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
  const std::vector<Answer> answers = planned_elsewhere(cases);
  if (const std::string why = missing(answers.front()); !why.empty()) {
    GTEST_SKIP() << "skipped: " << why;
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_NE(answers[i].status, cuda::kSuccess);
    EXPECT_NE(std::string(answers[i].text).find(reasons[i]), std::string::npos) << answers[i].text;
  }
}

}  // namespace
}  // namespace paceline
