// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_tuner.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "common/core/cuda/workspace.h"

namespace paceline::cuda {

namespace {

constexpr int kTimedRuns = 3;  // after one that is not
constexpr std::chrono::seconds kLongestWait{10};
constexpr std::chrono::microseconds kPause{20};

bool recorded(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check_runtime(cudaStreamIsCapturing(stream, &capture));
  return capture != cudaStreamCaptureStatusNone;
}

}  // namespace

/// Two events on a stream.
class DnnTuner::Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    check_runtime(cudaEventCreate(&begin_));
    if (const int status = cudaEventCreate(&end_); status != kSuccess) {
      (void)cudaEventDestroy(begin_);
      check_runtime(status);
    }
  }
  ~Timer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Of what work() queues.
  template <typename Work>
  [[nodiscard]] float milliseconds(const Work& work) {
    check_runtime(cudaEventRecord(begin_, stream_));
    work();
    check_runtime(cudaEventRecord(end_, stream_));
    const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
    int status = cudaEventQuery(end_);
    while (status == kNotReady && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      status = cudaEventQuery(end_);
    }
    late_ = status == kNotReady;
    (void)cudaGetLastError();  // which an event that was not ready may have become
    check_runtime(status);
    float passed = 0.0F;
    check_runtime(cudaEventElapsedTime(&passed, begin_, end_));
    return passed;
  }
  [[nodiscard]] bool late() const noexcept { return late_; }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  bool late_ = false;
};

std::size_t DnnTuner::fastest(std::span<const DnnPlan> plans,
                              std::span<const DnnBinding> bindings) {
  if (gave_up_ || plans.size() < 2 || recorded(handle_.stream())) {
    return 0;
  }
  Timer timer(handle_.stream());
  Workspace memory(handle_.stream());  // none of a loser's is kept
  std::size_t best = 0;
  float least = std::numeric_limits<float>::max();
  for (std::size_t i = 0; i < plans.size() && !gave_up_; ++i) {
    try {
      const auto run = [&] {
        plans[i].run(handle_.native(), bindings, memory.get(plans[i].bytes()));
      };
      (void)timer.milliseconds(run);
      float own = least;
      for (int k = 0; k < kTimedRuns; ++k) {
        own = std::min(own, timer.milliseconds(run));
      }
      if (own < least) {
        least = own;
        best = i;
      }
    } catch (const Failure&) {
      gave_up_ = timer.late();  // otherwise it is that plan which does not run here
    }
  }
  return best;
}

}  // namespace paceline::cuda
