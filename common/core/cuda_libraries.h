// SPDX-License-Identifier: Apache-2.0
// Where the libraries of CUDA lie that the module opens at run time: cuBLASLt, cuDNN and NCCL.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace paceline {

/// The folders of PACELINE_CUDA_LIBRARIES (separated by colons); the nvidia/*/lib folders of a
/// Python environment (VIRTUAL_ENV, CONDA_PREFIX, the python3 on PATH) and of `python_roots`;
/// /usr/local/cuda (CUDA_HOME), then whatever the loader finds by the plain name.
class CudaLibraries {
 public:
  /// Searches as the environment says.
  CudaLibraries();
  /// Of these folders only.
  explicit CudaLibraries(std::vector<std::filesystem::path> folders);

  /// What to open: a path where a folder has it, else the plain name, newest major first.
  [[nodiscard]] std::string blas() const;  ///< libcublasLt.so.13, or .12
  [[nodiscard]] std::string dnn() const;   ///< libcudnn.so.9
  [[nodiscard]] std::string nccl() const;  ///< libnccl.so.2
  [[nodiscard]] const std::vector<std::filesystem::path>& folders() const noexcept {
    return folders_;
  }

 private:
  [[nodiscard]] std::string find(std::initializer_list<const char*> names) const;

  std::vector<std::filesystem::path> folders_;
};

}  // namespace paceline
