// SPDX-License-Identifier: Apache-2.0
// Where the libraries of CUDA lie that the module opens at run time: cuBLASLt, cuDNN and NCCL.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace paceline {

/// The folders of PACELINE_CUDA_LIBRARIES and LD_LIBRARY_PATH (separated by colons); the
/// nvidia/*/lib folders that pip filled: of VIRTUAL_ENV, CONDA_PREFIX, the python3 on PATH (with
/// PREFIX/local, where root's pip installs on Debian and Ubuntu) and of the user (PYTHONUSERBASE or
/// ~/.local); CUDA_HOME or /usr/local/cuda; the distribution's own; then whatever the loader finds
/// by the plain name. An earlier folder wins, in one folder the newest major.
class CudaLibraries {
 public:
  /// Searches as the environment says.
  CudaLibraries();
  /// Of these folders only.
  explicit CudaLibraries(std::vector<std::filesystem::path> folders);

  /// What to open: a path where a folder has it, else the plain name of the newest major.
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
