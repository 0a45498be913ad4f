// SPDX-License-Identifier: Apache-2.0
// Every way in which there is no GPU to use has its own plain line. Nothing here needs a GPU.
#include "common/core/cuda_module.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

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
       {Machine{"other version", CudaState::module_unusable, "interface version 3, this program"},
        Machine{"no driver", CudaState::no_driver, "no NVIDIA driver"},
        Machine{"old driver", CudaState::no_driver, "for CUDA 12.4, the module needs 13.0"},
        Machine{"no device", CudaState::no_device, "but no device"},
        Machine{"zero devices", CudaState::no_device, "but no device"},
        Machine{"mute devices", CudaState::no_device, "an error of the double"}}) {
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
  EXPECT_THROW(module.check(2, "testing"), Error);
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

#if defined(PACELINE_CUDA_MODULE_FOLDER)
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
