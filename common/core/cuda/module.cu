// SPDX-License-Identifier: Apache-2.0
// The module's entry point, and what the table offers besides kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "common/core/cuda/launches.h"

namespace paceline::cuda {
namespace {

static_assert(kSuccess == cudaSuccess);
static_assert(kNoDriver == cudaErrorInsufficientDriver);
static_assert(kNoDevice == cudaErrorNoDevice);

cudaStream_t native(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

/// The caller is told by the status; without this the next launch would report it once more.
int told(cudaError_t status) {
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
  }
  return status;
}

const char* error_text(int status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

int versions(int* driver, int* runtime) {
  const cudaError_t status = cudaDriverGetVersion(driver);
  return told(status != cudaSuccess ? status : cudaRuntimeGetVersion(runtime));
}

int device_count(int* count) {
  *count = 0;  // left as it is on an error
  return told(cudaGetDeviceCount(count));
}

int device_info(int device, DeviceInfo* info) {
  cudaDeviceProp properties;
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, device);
      status != cudaSuccess) {
    return told(status);
  }
  *info = {};
  std::memcpy(info->name, properties.name, std::min(sizeof info->name, sizeof properties.name));
  info->name[sizeof info->name - 1] = '\0';
  info->memory_bytes = properties.totalGlobalMem;
  info->major = properties.major;
  info->minor = properties.minor;
  return cudaSuccess;
}

int use_device(int device) {
  return told(cudaSetDevice(device));
}

int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  return told(cudaMemGetInfo(free_bytes, total_bytes));
}

int allocate(void** memory, std::size_t bytes) {
  return told(cudaMalloc(memory, bytes));
}

int release(void* memory) {
  return told(cudaFree(memory));
}

int create_stream(void** stream) {
  cudaStream_t made = nullptr;
  const cudaError_t status = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  *stream = made;
  return told(status);
}

int destroy_stream(void* stream) {
  return told(cudaStreamDestroy(native(stream)));
}

int synchronize(void* stream) {
  return told(cudaStreamSynchronize(native(stream)));
}

int copy_to_device(void* to, const void* from, std::size_t bytes, void* stream) {
  return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, native(stream)));
}

int copy_to_host(void* to, const void* from, std::size_t bytes, void* stream) {
  return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, native(stream)));
}

constexpr Api kApi{kAbiVersion,
                   error_text,
                   versions,
                   device_count,
                   device_info,
                   use_device,
                   memory_info,
                   allocate,
                   release,
                   create_stream,
                   destroy_stream,
                   synchronize,
                   copy_to_device,
                   copy_to_host,
                   bias_gradient,
                   max_pool_forward,
                   max_pool_backward,
                   softmax_cross_entropy,
                   update};

}  // namespace
}  // namespace paceline::cuda

extern "C" __attribute__((visibility("default"))) const paceline::cuda::Api* paceline_cuda_api() {
  return &paceline::cuda::kApi;
}
