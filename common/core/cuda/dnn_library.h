// SPDX-License-Identifier: Apache-2.0
// The functions of cuDNN that graphs of operations use, by name from a file, and a handle.
#pragma once

#include <cudnn.h>

#include "common/core/precision.h"

namespace paceline::cuda {

[[nodiscard]] cudnnDataType_t dnn_type(Precision format);

struct DnnLibrary {
  /// Throws Failure kNoLibrary where the file, a function or major version 9 is missing.
  explicit DnnLibrary(const char* file);
  /// Throws Failure unless status is a success.
  void check(cudnnStatus_t status, const char* what) const;

  decltype(&::cudnnGetVersion) get_version;
  decltype(&::cudnnGetErrorString) error_string;
  decltype(&::cudnnGetLastErrorString) last_error_string;
  decltype(&::cudnnCreate) create;
  decltype(&::cudnnDestroy) destroy;
  decltype(&::cudnnSetStream) set_stream;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&::cudnnBackendSetAttribute) set_attribute;
  decltype(&::cudnnBackendGetAttribute) get_attribute;
  decltype(&::cudnnBackendFinalize) finalize;
  decltype(&::cudnnBackendExecute) execute;
};

/// The library and its handle for the calling thread's current device, which queues on `stream`.
class DnnHandle {
 public:
  /// Throws Failure.
  DnnHandle(const char* file, cudaStream_t stream);
  ~DnnHandle();
  DnnHandle(const DnnHandle&) = delete;
  DnnHandle& operator=(const DnnHandle&) = delete;

  [[nodiscard]] const DnnLibrary& library() const noexcept { return library_; }
  [[nodiscard]] cudnnHandle_t native() const noexcept { return native_; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }

 private:
  DnnLibrary library_;
  cudaStream_t stream_;
  cudnnHandle_t native_ = nullptr;
};

}  // namespace paceline::cuda
