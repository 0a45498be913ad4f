// SPDX-License-Identifier: Apache-2.0
// Memory that library calls of one stream use one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "common/core/cuda/library.h"

namespace paceline::cuda {

/// Grows from the device's stream-ordered pool, so that growing waits for nothing.
class Workspace {
 public:
  explicit Workspace(cudaStream_t stream) : stream_(stream) {}
  ~Workspace() { release(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// At least `bytes` of memory, aligned as cudaMalloc's; what it held before is lost. Throws
  /// Failure naming what is wanted when there is not as much.
  [[nodiscard]] void* get(std::size_t bytes) {
    if (bytes > bytes_) {
      refuse_capture();
      release();
      if (const int status = cudaMallocAsync(&memory_, bytes, stream_); status != kSuccess) {
        memory_ = nullptr;
        (void)cudaGetLastError();  // told by the status, not once more by the next launch
        throw Failure{status, "the workspace wants " + std::to_string(bytes) + " bytes: " +
                                  cudaGetErrorString(static_cast<cudaError_t>(status))};
      }
      bytes_ = bytes;
    }
    return memory_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  /// What a graph allocates is its own.
  void refuse_capture() const {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_runtime(cudaStreamIsCapturing(stream_, &capture));
    if (capture != cudaStreamCaptureStatusNone) {
      throw Failure{cudaErrorStreamCaptureUnsupported,
                    "the workspace would grow while a graph is recorded"};
    }
  }
  void release() noexcept {
    if (memory_ != nullptr) {
      (void)cudaFreeAsync(memory_, stream_);
    }
    memory_ = nullptr;
    bytes_ = 0;
  }

  cudaStream_t stream_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace paceline::cuda
