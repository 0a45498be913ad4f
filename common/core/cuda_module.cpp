// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "common/base/error.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

#if defined(PACELINE_WITH_CUDA)
constexpr bool kBuilt = true;
#else
constexpr bool kBuilt = false;
#endif

struct LibraryCloser {
  void operator()(void* library) const noexcept { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

std::string loader_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string device_text(const cuda::DeviceInfo& device) {
  return fmt::format("{}, {:.1f} GiB, compute capability {}.{}", device.name,
                     static_cast<double>(device.memory_bytes) / (1 << 30), device.major,
                     device.minor);
}

}  // namespace

CudaSearch default_cuda_search() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  return {kBuilt, {program, program / ".." / PACELINE_LIBRARY_FOLDER}};
}

CudaModule::CudaModule(const CudaSearch& search) {
  open(search);
}

void CudaModule::open(const CudaSearch& search) {
  if (!search.built) {
    return fail(CudaState::built_without, "this program was built without CUDA (PACELINE_CUDA)");
  }
  fs::path file;
  std::vector<std::string> tried;
  for (const fs::path& folder : search.folders) {
    std::error_code error;
    const fs::path candidate = (folder / cuda::kModuleFile).lexically_normal();
    if (fs::exists(candidate, error)) {
      file = candidate;
      break;
    }
    tried.push_back(candidate.parent_path().string());
  }
  if (file.empty()) {
    return fail(CudaState::module_missing, fmt::format("the module {} is in none of {}",
                                                       cuda::kModuleFile, fmt::join(tried, ", ")));
  }
  if (const Library driver(dlopen(search.driver_library.c_str(), RTLD_LAZY | RTLD_LOCAL));
      !driver) {
    return fail(CudaState::no_driver, fmt::format("no NVIDIA driver: {}", loader_error()));
  }
  load(file);
}

void CudaModule::load(const fs::path& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    return fail(CudaState::module_unusable, loader_error());
  }
  auto* entry = reinterpret_cast<cuda::EntryPoint*>(dlsym(library, cuda::kEntryPoint));
  if (entry == nullptr) {
    return fail(CudaState::module_unusable,
                fmt::format("{} does not have {}", file.string(), cuda::kEntryPoint));
  }
  api_ = entry();
  if (api_->abi_version != cuda::kAbiVersion) {
    return fail(CudaState::module_unusable,
                fmt::format("{} is of interface version {}, this program needs {}", file.string(),
                            api_->abi_version, cuda::kAbiVersion));
  }
  find_devices();
}

void CudaModule::find_devices() {
  int count = 0;
  int status = api_->device_count(&count);
  if (status == cuda::kNoDevice || (status == cuda::kSuccess && count == 0)) {
    return fail(CudaState::no_device, "the NVIDIA driver is there, but no device");
  }
  const int known = api_->versions(&driver_version_, &runtime_version_);
  if (status == cuda::kNoDriver) {
    if (known != cuda::kSuccess || driver_version_ == 0) {
      return fail(CudaState::no_driver, "no NVIDIA driver that the CUDA runtime can use");
    }
    return fail(CudaState::driver_unusable,
                fmt::format("the NVIDIA driver is for CUDA {}, the module needs {}",
                            version_text(driver_version_), version_text(runtime_version_)));
  }
  for (int device = 0; device < count && status == cuda::kSuccess; ++device) {
    status = api_->device_info(device, &devices_.emplace_back());
  }
  if (status != cuda::kSuccess) {
    fail(CudaState::driver_unusable,
         fmt::format("the NVIDIA driver answers with an error: {}", api_->error_text(status)));
  }
}

void CudaModule::fail(CudaState state, std::string reason) {
  state_ = state;
  reason_ = std::move(reason);
  devices_.clear();
}

std::string CudaModule::description() const {
  if (!usable()) {
    return "not usable: " + reason_;
  }
  std::string text;
  for (const cuda::DeviceInfo& device : devices_) {
    text += device_text(device) + "; ";
  }
  return text + fmt::format("driver for CUDA {}, runtime {}", version_text(driver_version_),
                            version_text(runtime_version_));
}

const cuda::Api& CudaModule::api() const {
  if (!usable()) {
    throw Error("CUDA cannot be used: " + reason_);
  }
  return *api_;
}

CudaModule::MemoryLeft CudaModule::memory_left() const {
  MemoryLeft left;
  static_cast<void>(api().memory_info(&left.free, &left.total));
  return left;
}

void CudaModule::check(int status, std::string_view what) const {
  if (status == cuda::kSuccess) {
    return;
  }
  std::string text = fmt::format("CUDA: {}: {}", what, api().error_text(status));
  if (status == cuda::kOutOfMemory) {
    const MemoryLeft left = memory_left();
    text += fmt::format(" ({} of the GPU's {} bytes are free)", left.free, left.total);
  }
  throw Error(text);
}

const CudaModule& cuda_module() {
  static const CudaModule module(default_cuda_search());
  return module;
}

}  // namespace paceline
