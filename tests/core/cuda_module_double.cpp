// SPDX-License-Identifier: Apache-2.0
// A double of the module libpaceline_cuda.so that only answers what machines have; which machine,
// the variable PACELINE_CUDA_DOUBLE says. Nothing it answers is a GPU's result.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/core/cuda/abi.h"

namespace {

using paceline::cuda::Api;
using paceline::cuda::DeviceInfo;

std::string_view machine() {
  const char* text = std::getenv("PACELINE_CUDA_DOUBLE");
  return text != nullptr ? text : "";
}

const char* error_text(int /*status*/) {
  return "an error of the double";
}

int versions(int* driver, int* runtime) {
  *driver = machine() == "no driver" ? 0 : 12040;
  *runtime = 13000;
  return paceline::cuda::kSuccess;
}

int device_count(int* count) {
  *count = 0;
  if (machine() == "no device") return paceline::cuda::kNoDevice;
  if (machine() == "no driver" || machine() == "old driver") return paceline::cuda::kNoDriver;
  if (machine() != "zero devices") *count = 2;
  return paceline::cuda::kSuccess;
}

int device_info(int device, DeviceInfo* info) {
  if (machine() == "mute devices") return 999;
  *info = {};
  std::strcpy(info->name, device == 0 ? "Double A" : "Double B");
  info->memory_bytes = std::uint64_t{8} << 30;
  info->major = 9;
  return paceline::cuda::kSuccess;
}

}  // namespace

extern "C" const Api* paceline_cuda_api() {
  static Api api;
  api = {};
  api.abi_version = paceline::cuda::kAbiVersion + (machine() == "other version" ? 1 : 0);
  api.error_text = error_text;
  api.memory_info = [](std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = 3;
    *total_bytes = 8;
    return paceline::cuda::kSuccess;
  };
  api.versions = versions;
  api.device_count = device_count;
  api.device_info = device_info;
  return &api;
}
