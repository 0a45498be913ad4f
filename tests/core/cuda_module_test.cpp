// SPDX-License-Identifier: Apache-2.0
// Every way in which there is no GPU to use has its own plain line. Nothing here needs a GPU.
#include "common/core/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <optional>
#include <string>

#include "common/base/error.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// A folder of this process's own, removed at the end.
class Folder {
 public:
  Folder() {
    static int made = 0;  // a library is opened once per path, so each folder has its own
    path_ = fs::temp_directory_path() / fmt::format("paceline-cuda-{}-{}", getpid(), ++made);
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// A library that every machine has and that is neither the driver nor the module.
constexpr const char* kSomeLibrary = "libc.so.6";

TEST(CudaModule, BuiltWithout) {
  const CudaModule module({.built = false, .folders = {}});
  EXPECT_EQ(module.state(), CudaState::built_without);
  EXPECT_TRUE(has(module.reason(), "built without CUDA")) << module.reason();
  EXPECT_EQ(module.description(), "not usable: " + module.reason());
  EXPECT_THROW(static_cast<void>(module.api()), Error);
}

TEST(CudaModule, FileMissing) {
  const Folder folder;
  const CudaModule module({.built = true,
                           .folders = {folder.path(), folder.path() / "../lib"},
                           .driver_library = kSomeLibrary});
  EXPECT_EQ(module.state(), CudaState::module_missing);
  EXPECT_TRUE(has(module.reason(), "libpaceline_cuda.so is in none of " + folder.path().string()))
      << module.reason();
  EXPECT_FALSE(has(module.reason(), "..")) << module.reason();
}

TEST(CudaModule, FileIsNoModule) {
  const Folder folder;
  std::ofstream(folder.path() / cuda::kModuleFile) << "not a library";
  const CudaModule module(
      {.built = true, .folders = {folder.path()}, .driver_library = kSomeLibrary});
  EXPECT_EQ(module.state(), CudaState::module_unusable);
  EXPECT_TRUE(has(module.reason(), folder.path().string())) << module.reason();
}

/// As if the module ran on a machine of this kind (see cuda_module_double.cpp).
CudaModule module_on(const char* machine) {
  const Folder folder;
  fs::copy_file(PACELINE_CUDA_DOUBLE, folder.path() / cuda::kModuleFile);
  setenv("PACELINE_CUDA_DOUBLE", machine, 1);
  return CudaModule({.built = true, .folders = {folder.path()}, .driver_library = kSomeLibrary});
}

struct Machine {
  const char* name;
  CudaState state;
  const char* reason;
};

TEST(CudaModule, SaysWhatTheMachineLacks) {
  for (const Machine& machine :
       {Machine{"other version", CudaState::module_unusable, ", this program needs"},
        Machine{"no driver", CudaState::no_driver, "no NVIDIA driver"},
        Machine{"old driver", CudaState::driver_unusable, "for CUDA 12.4, the module needs 13.0"},
        Machine{"no device", CudaState::no_device, "but no device"},
        Machine{"zero devices", CudaState::no_device, "but no device"},
        Machine{"mute devices", CudaState::driver_unusable, "an error of the double"}}) {
    const CudaModule module = module_on(machine.name);
    EXPECT_EQ(module.state(), machine.state) << machine.name;
    EXPECT_TRUE(has(module.reason(), machine.reason)) << module.reason();
    EXPECT_TRUE(module.devices().empty()) << machine.name;
    EXPECT_THROW(static_cast<void>(module.api()), Error) << machine.name;
  }
}

TEST(CudaModule, DescribesTheDevices) {
  const CudaModule module = module_on("two devices");
  EXPECT_TRUE(module.usable()) << module.reason();
  EXPECT_EQ(module.description(),
            "Double A, 8.0 GiB, compute capability 9.0; Double B, 8.0 GiB, compute capability 9.0; "
            "driver for CUDA 12.4, runtime 13.0");
  EXPECT_THROW(module.check(1, "testing"), Error);
  EXPECT_NO_THROW(module.check(cuda::kSuccess, "testing"));
}

TEST(CudaModule, DriverMissing) {
  const Folder folder;
  std::ofstream(folder.path() / cuda::kModuleFile) << "never opened";
  const CudaModule module(
      {.built = true, .folders = {folder.path()}, .driver_library = "libpaceline_no_driver.so.1"});
  EXPECT_EQ(module.state(), CudaState::no_driver);
  EXPECT_TRUE(has(module.reason(), "no NVIDIA driver: libpaceline_no_driver.so.1"))
      << module.reason();
}

TEST(CudaModule, ThisProcessHasDevicesOrAReason) {
  const CudaModule& module = cuda_module();
  EXPECT_EQ(module.usable(), module.reason().empty());
  EXPECT_EQ(module.usable(), !module.devices().empty());
  EXPECT_FALSE(has(module.description(), "\n"));
}

TEST(CudaLibraries, TakesTheFirstFolderAndTheNewestMajor) {
  const Folder first;
  const Folder second;
  const auto touch = [](const Folder& folder, const char* name) {
    std::ofstream(folder.path() / name) << "made up";
    return (folder.path() / name).string();
  };
  const CudaLibraries libraries({first.path(), second.path(), "/nowhere"});
  EXPECT_EQ(libraries.blas(), "libcublasLt.so.13") << "left to the loader";
  EXPECT_EQ(libraries.dnn(), "libcudnn.so.9");
  EXPECT_EQ(libraries.nccl(), "libnccl.so.2");
  EXPECT_EQ(libraries.blas(), touch(second, "libcublasLt.so.13"));
  EXPECT_EQ(libraries.blas(), touch(first, "libcublasLt.so.12"));
  EXPECT_EQ(libraries.blas(), touch(first, "libcublasLt.so.13"));
  const std::string later = touch(second, "libcudnn.so.9");
  EXPECT_EQ(libraries.dnn(), later);
  EXPECT_EQ(libraries.dnn(), touch(first, "libcudnn.so.9"));
  EXPECT_EQ(libraries.nccl(), "libnccl.so.2");
}

/// Sets a variable of the environment, and back.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name); before != nullptr) {
      before_ = before;
    }
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// Makes PREFIX/PACKAGES/nvidia/cublas/lib with a library in it.
fs::path made_up_cublas(const fs::path& packages) {
  fs::path folder = packages / "nvidia/cublas/lib";
  fs::create_directories(folder);
  std::ofstream(folder / "libcublasLt.so.12") << "made up";
  return folder;
}

/// Where `wanted` stands among the folders searched.
std::ptrdiff_t place_of(const CudaLibraries& libraries, const fs::path& wanted) {
  const auto& folders = libraries.folders();
  return std::find(folders.begin(), folders.end(), wanted) - folders.begin();
}

TEST(CudaLibraries, SearchesWhereTheEnvironmentSays) {
  const Folder folder;
  const fs::path packages = made_up_cublas(folder.path() / "lib/python3.11/site-packages");
  const Variable environment("VIRTUAL_ENV", folder.path());
  const Variable loader("LD_LIBRARY_PATH", "/somewhere");
  EXPECT_EQ(place_of(CudaLibraries(), packages), 1);
  const Variable named("PACELINE_CUDA_LIBRARIES", ":/nowhere:" + folder.path().string());
  const CudaLibraries libraries;
  EXPECT_EQ(place_of(libraries, folder.path()), 1);
  EXPECT_EQ(place_of(libraries, "/somewhere"), 2);
  EXPECT_EQ(place_of(libraries, packages), 3);
}

TEST(CudaLibraries, FindsWhatPipInstallsOnUbuntu) {
  const Folder folder;
  const fs::path usr = folder.path() / "usr";
  const fs::path home = folder.path() / "home";
  fs::create_directories(usr / "bin");
  std::ofstream(usr / "bin/python3") << "made up";
  const fs::path of_user = made_up_cublas(home / ".local/lib/python3.12/site-packages");
  const Variable path("PATH", usr / "bin");
  const Variable user("HOME", home);
  const Variable base("PYTHONUSERBASE", "");
  const Variable environment("VIRTUAL_ENV", "");
  const Variable conda("CONDA_PREFIX", "");
  EXPECT_EQ(CudaLibraries().blas(), of_user / "libcublasLt.so.12");
  const fs::path of_root = made_up_cublas(usr / "local/lib/python3.12/dist-packages");
  EXPECT_EQ(CudaLibraries().blas(), of_root / "libcublasLt.so.12");
}

#if defined(PACELINE_CUDA_MODULE_FOLDER)
/// The module's own tables, which answer without a driver too.
const cuda::Api& real_tables() {
  const fs::path file = fs::path(PACELINE_CUDA_MODULE_FOLDER) / cuda::kModuleFile;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw Error(dlerror());
  }
  return *reinterpret_cast<cuda::EntryPoint*>(dlsym(library, cuda::kEntryPoint))();
}

TEST(CudaModule, TheRealOneSaysWhichLibraryOrFunctionIsMissing) {
  const cuda::Api& api = real_tables();
  const auto reason = [&](const char* blas) {
    void* math = nullptr;
    const cuda::MathOptions options{
        .tf32 = 0, .tune = 0, .blas_library = blas, .dnn_library = nullptr};
    EXPECT_EQ(api.math.create(&math, &options, nullptr), cuda::kNoLibrary);
    EXPECT_EQ(math, nullptr);
    return std::string(api.error_text(cuda::kNoLibrary));
  };
  const std::string missing = reason("/nowhere/libcublasLt.so.13");
  EXPECT_TRUE(has(missing, "/nowhere/libcublasLt.so.13: cannot open")) << missing;
  EXPECT_EQ(reason(PACELINE_CUDA_DOUBLE), PACELINE_CUDA_DOUBLE " does not have cublasLtGetVersion");
  const std::string other_thread = std::async(std::launch::async, [&] {
                                     return std::string(api.error_text(cuda::kNoLibrary));
                                   }).get();
  EXPECT_EQ(other_thread, "a library of CUDA is missing") << "each thread has its own last call";
}

TEST(CudaModule, TheRealOneHasWordsForEveryStatus) {
  const cuda::Api& api = real_tables();
  EXPECT_STREQ(api.error_text(cuda::kOutOfMemory), "out of memory");
  EXPECT_STREQ(api.error_text(cuda::kDnnStatus + 3000), "status 3000 of cuDNN");
  EXPECT_STREQ(api.error_text(cuda::kBlasStatus + 13), "status 13 of cuBLASLt");
  EXPECT_STREQ(api.error_text(cuda::kNcclStatus + 5), "NCCL: invalid usage");
  EXPECT_STREQ(api.error_text(cuda::kNcclStatus + 99), "status 99 of NCCL");
}

TEST(CudaModule, TheRealOneLoadsAndAsksTheRuntime) {
  const CudaModule module(
      {.built = true, .folders = {PACELINE_CUDA_MODULE_FOLDER}, .driver_library = kSomeLibrary});
  EXPECT_NE(module.state(), CudaState::module_unusable) << module.reason();
  EXPECT_NE(module.state(), CudaState::module_missing) << module.reason();
  if (!module.usable()) {
    EXPECT_TRUE(has(module.reason(), "NVIDIA driver")) << module.reason();
  }
}
#endif

}  // namespace
}  // namespace paceline
