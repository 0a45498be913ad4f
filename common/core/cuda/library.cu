// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/library.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

namespace paceline::cuda {

namespace {

thread_local Failure last_failure{kSuccess, {}};

std::string loader_reason() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

}  // namespace

void check_runtime(int status) {
  if (status != cudaSuccess) {
    (void)cudaGetLastError();  // told by the status, not once more by the next launch
    throw Failure{status, cudaGetErrorString(static_cast<cudaError_t>(status))};
  }
}

int remember(Failure failure) noexcept {
  last_failure = std::move(failure);
  return last_failure.status;
}

const char* failure_text(int status) noexcept {
  return last_failure.status == status && !last_failure.text.empty() ? last_failure.text.c_str()
                                                                     : nullptr;
}

Library::Library(const char* file)
    : file_(file != nullptr ? file : "(no file)"),
      handle_(dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    throw Failure{kNoLibrary, loader_reason()};
  }
}

void* Library::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) {
    throw Failure{kNoLibrary, file_ + " does not have " + name};
  }
  return found;
}

}  // namespace paceline::cuda
