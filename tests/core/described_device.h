// SPDX-License-Identifier: Apache-2.0
// What cuDNN plans for devices that are only described to it: the CUDA module is asked in a process
// of its own, where the driver is a double. Nothing is computed.
#pragma once

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

namespace paceline::test {

/// As cuDNN writes a device's properties, of which only some differ.
inline std::string described(int capability, int multiprocessors, int shared_memory, int l2_cache) {
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

inline const std::string& hopper() {
  static const std::string json = described(900, 132, 232448, 52428800);
  return json;
}

inline const std::string& ampere() {
  static const std::string json = described(800, 108, 166912, 41943040);
  return json;
}

template <typename Shape>
struct PlannedCase {
  const std::string& device;
  Shape shape;
  bool tf32 = false;
};

struct Planned {
  int status = -1;
  cuda::WorkspacePlan plan{};
  char text[512] = {};
};

template <typename Shape>
using PlanFunction = int (*cuda::MathApi::*)(const cuda::MathOptions*, const char*, const Shape*,
                                             cuda::WorkspacePlan*);

/// `plan` is a member of MathApi.
template <typename Shape>
Planned ask_for_plan(const cuda::Api& api, PlanFunction<Shape> plan, const std::string& dnn,
                     const PlannedCase<Shape>& what) {
  Planned answer;
  const cuda::MathOptions options{what.tf32 ? 1 : 0, 0, nullptr, dnn.c_str()};
  answer.status = (api.math.*plan)(&options, what.device.c_str(), &what.shape, &answer.plan);
  if (answer.status != cuda::kSuccess) {
    std::strncpy(answer.text, api.error_text(answer.status), sizeof answer.text - 1);
  }
  return answer;
}

template <typename Shape>
std::vector<Planned> planned_elsewhere(PlanFunction<Shape> plan,
                                       const std::vector<PlannedCase<Shape>>& cases) {
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
    for (const PlannedCase<Shape>& what : cases) {
      const Planned answer = ask_for_plan(api, plan, dnn, what);
      if (write(ends[1], &answer, sizeof answer) != sizeof answer) {
        _exit(1);
      }
    }
    _exit(0);
  }
  close(ends[1]);
  std::vector<Planned> answers(cases.size());
  for (Planned& answer : answers) {
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
inline std::string planner_missing(const Planned& answer) {
  if (void* const real = dlopen("libcuda.so.1", RTLD_NOW); real != nullptr) {
    return "this machine has a driver, in whose place no double can be";
  }
  const std::string text = answer.text;
  const bool none = answer.status == cuda::kNoLibrary ||
                    text.find("PREREQUISITE_MISSING") != std::string::npos ||
                    text.find("too old") != std::string::npos;
  return none ? text : "";
}

}  // namespace paceline::test
