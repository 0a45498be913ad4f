// SPDX-License-Identifier: Apache-2.0
// What Hogwild!'s workers leave in place where one's stream is stuck, on the host's double of the
// CUDA module.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "async/gpu_hogwild.h"
#include "common/base/error.h"
#include "common/comm/topology.h"
#include "tests/support/host_module.h"
#include "tests/support/never_done.h"

namespace paceline {
namespace {

const CudaModule& host() {
  static const CudaModule module(test::host_module());
  return module;
}

/// Two workers on one GPU.
class StuckHogwild : public ::testing::Test {
 protected:
  StuckHogwild() : workers_(make_thread_communicators(2, Nanoseconds(kLimit).count(), abort_)) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      gpus_.push_back(std::make_unique<Gpu>(
          host(), GpuOptions{.timeout = std::chrono::milliseconds(50), .abort = &abort_}));
      synchronizers_.push_back(
          make_gpu_hogwild({static_cast<int>(rank), config_, topology_, *workers_[rank],
                            *workers_[rank], nullptr, abort_}));
    }
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, rank] {
        const std::vector<float> init(plan_.elements());
        synchronizers_[rank]->bind(plan_, *gpus_[rank], {}, init);
      });
    }
  }
  ~StuckHogwild() override {
    synchronizers_.clear();
    gpus_.clear();
    test::free_host_module();
  }

  static constexpr std::chrono::seconds kLimit{20};
  Config config_;
  Topology topology_{2, 0, 0};
  BucketPlan plan_{std::vector<std::size_t>{1000}};
  AbortToken abort_;
  std::vector<std::unique_ptr<Communicator>> workers_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<std::unique_ptr<Synchronizer>> synchronizers_;
};

TEST_F(StuckHogwild, WithoutATroubleNothingIsLeft) {
  synchronizers_.clear();
  EXPECT_EQ(test::host_module_bytes(), 0U);
}

/// The healthy worker's end must not free either: that waits for the whole device.
TEST_F(StuckHogwild, ItsMemoryAndTheOthersStay) {
  const test::NeverDone stuck(gpus_[1]->stream());
  const std::size_t held = test::host_module_bytes();
  EXPECT_GT(held, 0U);
  try {
    gpus_[1]->stream().synchronize("a test's end");
    ADD_FAILURE() << "no timeout";
  } catch (const TimeoutError&) {
    abort_.request(std::current_exception());
  }
  synchronizers_[0].reset();
  EXPECT_EQ(test::host_module_bytes(), held);
  synchronizers_[1].reset();
  EXPECT_EQ(test::host_module_bytes(), held);
}

}  // namespace
}  // namespace paceline
