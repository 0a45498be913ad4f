// SPDX-License-Identifier: Apache-2.0
// A library of CUDA that the module opens by file at run time, and what is known of a call that
// failed.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "common/core/cuda/abi.h"

namespace paceline::cuda {

/// A call failed; never leaves the module.
struct Failure {
  int status;  ///< as in abi.h
  std::string text;
};

/// Throws Failure unless status, a cudaError_t, is a success.
void check_runtime(int status);

/// Keeps `failure` for failure_text() and returns its status.
int remember(Failure failure) noexcept;

/// What the calling thread's last failed call said, null if that had another status.
[[nodiscard]] const char* failure_text(int status) noexcept;

/// The body of a function of the tables: no exception passes C's calling convention.
template <typename Work>
int guarded(const Work& work) noexcept {
  try {
    work();
    return kSuccess;
  } catch (Failure& failure) {
    return remember(std::move(failure));
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::exception& error) {
    constexpr int kUnknown = 999;  // cudaErrorUnknown
    return remember({kUnknown, error.what()});
  }
}

/// Stays open until the process ends, since libraries of CUDA keep state beyond their handles.
class Library {
 public:
  /// Throws Failure kNoLibrary with the loader's reason.
  explicit Library(const char* file);

  /// Sets `function` to the one of that name. Throws Failure kNoLibrary naming the file and it.
  template <typename Function>
  void find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  [[nodiscard]] const std::string& file() const noexcept { return file_; }

 private:
  [[nodiscard]] void* symbol(const char* name) const;

  std::string file_;
  void* handle_;
};

}  // namespace paceline::cuda
