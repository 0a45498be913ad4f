// SPDX-License-Identifier: Apache-2.0
// What tests on a real GPU start from. Without a GPU every case is skipped.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/core/gpu/gpu.h"

namespace paceline::test {

inline const CudaModule& module_under_test() {
#if defined(PACELINE_CUDA_MODULE_FOLDER)
  static const CudaModule module([] {
    CudaSearch search = default_cuda_search();  // where an installed test finds it
    search.built = true;
    search.folders.emplace_back(PACELINE_CUDA_MODULE_FOLDER);
    return search;
  }());
#else
  static const CudaModule module({.built = false, .folders = {}});
#endif
  return module;
}

/// A module that should work here and does not (an old driver, a card that answers with an error)
/// is a failure, not a machine without a GPU.
inline bool machine_lacks_a_gpu(CudaState state) {
  return state == CudaState::built_without || state == CudaState::no_driver ||
         state == CudaState::no_device;
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    const CudaModule& module = module_under_test();
    if (machine_lacks_a_gpu(module.state())) {
      GTEST_SKIP() << "skipped: no GPU (" << module.reason() << ")";
    }
    ASSERT_TRUE(module.usable()) << module.reason();
    gpu_ = std::make_unique<Gpu>(module, GpuOptions{});
  }
  [[nodiscard]] Gpu& gpu() const { return *gpu_; }

 private:
  std::unique_ptr<Gpu> gpu_;
};

/// One vector on the device, with what a test needs to fill, read and compare it.
template <typename T>
class OnDevice {
 public:
  OnDevice(const std::vector<T>& values, Gpu& gpu)
      : memory_(gpu, values.size() * sizeof(T), "a test"), gpu_(gpu), elements_(values.size()) {
    gpu_.check(gpu_.api().copy_to_device(memory_.as(), values.data(), memory_.size(),
                                         gpu_.stream().native()),
               "copying to the device");
    gpu_.stream().synchronize();
  }
  [[nodiscard]] T* get() const { return memory_.template as<T>(); }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> out(elements_);
    gpu_.check(
        gpu_.api().copy_to_host(out.data(), memory_.as(), memory_.size(), gpu_.stream().native()),
        "copying to the host");
    gpu_.stream().synchronize();
    return out;
  }

 private:
  GpuMemory memory_;
  Gpu& gpu_;
  std::size_t elements_;
};

}  // namespace paceline::test
