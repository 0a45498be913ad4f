// SPDX-License-Identifier: Apache-2.0
// The GPU side of the program, opened at run time: the program links nothing of CUDA and starts
// where there is no driver. Whoever wants a GPU asks cuda_module() and gets it, or one plain line
// that says why not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/cuda/abi.h"
#include "common/core/cuda_libraries.h"

namespace paceline {

enum class CudaState : std::uint8_t {
  usable,
  built_without,    ///< this program was configured without CUDA
  module_missing,   ///< libpaceline_cuda.so is not where it should be
  module_unusable,  ///< it is there, but does not load or is of another version
  no_driver,        ///< libcuda.so.1 is missing
  driver_unusable,  ///< it is older than the module's CUDA, or answers with an error
  no_device,
};

/// Where to look; tests look elsewhere.
struct CudaSearch {
  bool built;                                  ///< was the module built with this program
  std::vector<std::filesystem::path> folders;  ///< of the module, the first that has it wins
  std::string driver_library = "libcuda.so.1";
};

/// What this program was built with: its own folder, then the library folder beside it.
[[nodiscard]] CudaSearch default_cuda_search();

/// Immutable; any thread. A module once opened stays open until the process ends.
class CudaModule {
 public:
  explicit CudaModule(const CudaSearch& search);
  /// As if `api` had been found, for a double that runs in the process. It outlives this.
  explicit CudaModule(const cuda::Api& api) : api_(&api) { find_devices(); }

  [[nodiscard]] CudaState state() const noexcept { return state_; }
  [[nodiscard]] bool usable() const noexcept { return state_ == CudaState::usable; }
  /// Why it is not usable, one line without a full stop; empty when it is.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// The devices and CUDA's versions in one line, or "not usable: " and the reason.
  [[nodiscard]] std::string description() const;
  [[nodiscard]] const std::vector<cuda::DeviceInfo>& devices() const noexcept { return devices_; }

  /// Of cuBLASLt, cuDNN and NCCL.
  [[nodiscard]] const CudaLibraries& libraries() const noexcept { return libraries_; }

  /// Throws Error with the reason when not usable.
  [[nodiscard]] const cuda::Api& api() const;
  /// Of the current device, in bytes; zeros where it does not tell.
  struct MemoryLeft {
    std::size_t free = 0;
    std::size_t total = 0;
  };
  [[nodiscard]] MemoryLeft memory_left() const;
  /// Throws Error "CUDA: WHAT: text" unless status is a success; where memory was wanted it says
  /// how much the current device has free.
  void check(int status, std::string_view what) const;

 private:
  void open(const CudaSearch& search);
  void load(const std::filesystem::path& file);
  void find_devices();
  void fail(CudaState state, std::string reason);

  CudaState state_ = CudaState::usable;
  std::string reason_;
  const cuda::Api* api_ = nullptr;
  int driver_version_ = 0;
  int runtime_version_ = 0;
  std::vector<cuda::DeviceInfo> devices_;
  CudaLibraries libraries_;
};

/// The process's own, opened at the first call.
[[nodiscard]] const CudaModule& cuda_module();

}  // namespace paceline
