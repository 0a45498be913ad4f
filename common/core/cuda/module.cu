// SPDX-License-Identifier: Apache-2.0
// The module's entry point, and what the table offers besides kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "common/core/cuda/launches.h"
#include "common/core/cuda/library.h"
#include "common/core/cuda/math.h"
#include "common/core/cuda/nccl.h"

namespace paceline::cuda {
namespace {

static_assert(kSuccess == cudaSuccess);
static_assert(kNoDriver == cudaErrorInsufficientDriver);
static_assert(kNoDevice == cudaErrorNoDevice);
static_assert(kOutOfMemory == cudaErrorMemoryAllocation);
static_assert(kNotReady == cudaErrorNotReady);

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
  if (status < kDnnStatus) {
    return cudaGetErrorString(static_cast<cudaError_t>(status));
  }
  if (const char* text = failure_text(status); text != nullptr) {
    return text;
  }
  if (status >= kNoLibrary) {
    return "a library of CUDA is missing";
  }
  const bool nccl = status >= kNcclStatus;
  if (const char* words = nccl ? nccl_result_text(status - kNcclStatus) : nullptr) {
    return words;
  }
  const bool blas = status >= kBlasStatus;
  thread_local char text[64];
  std::snprintf(text, sizeof text, "status %d of %s", status % kDnnStatus,
                nccl ? "NCCL" : (blas ? "cuBLASLt" : "cuDNN"));
  return text;
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
  (void)cudaDeviceGetPCIBusId(info->bus_id, sizeof info->bus_id, device);
  info->major = properties.major;
  info->minor = properties.minor;
  info->multiprocessors = properties.multiProcessorCount;
  int clock_khz = 0;
  int bus_bits = 0;
  if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device) == cudaSuccess) {
    info->memory_bytes_per_second = 2.0 * 1e3 * clock_khz * (bus_bits / 8.0);
  }
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

int pool_memory(std::size_t* used, std::size_t* peak) {
  *used = 0;
  *peak = 0;
  int device = 0;
  cudaMemPool_t pool = nullptr;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetDefaultMemPool(&pool, device);
  }
  std::uint64_t bytes = 0;  // cuuint64_t
  if (status == cudaSuccess) {
    status = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes);
    *used = bytes;
  }
  if (status == cudaSuccess) {
    status = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &bytes);
    *peak = bytes;
  }
  return told(status);
}

int peer_access(int device, int peer, int* possible) {
  return told(cudaDeviceCanAccessPeer(possible, device, peer));
}

/// No error where it is on.
void open_one_way(int device, int peer) {
  int possible = 0;
  int current = 0;
  if (cudaDeviceCanAccessPeer(&possible, device, peer) == cudaSuccess && possible != 0 &&
      cudaGetDevice(&current) == cudaSuccess && cudaSetDevice(device) == cudaSuccess) {
    (void)cudaDeviceEnablePeerAccess(peer, 0);
    (void)cudaSetDevice(current);
  }
  (void)cudaGetLastError();
}

int open_peer(int device, int peer) {
  open_one_way(device, peer);
  open_one_way(peer, device);
  return kSuccess;
}

int register_host(void* memory, std::size_t bytes) {
  return told(cudaHostRegister(memory, bytes, cudaHostRegisterDefault));
}

int unregister_host(void* memory) {
  return told(cudaHostUnregister(memory));
}

int create_stream(void** stream, int high_priority) {
  int lowest = 0;
  int highest = 0;
  if (const cudaError_t status = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
      status != cudaSuccess) {
    return told(status);
  }
  cudaStream_t made = nullptr;
  const cudaError_t status = cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking,
                                                          high_priority != 0 ? highest : lowest);
  *stream = made;
  return told(status);
}

int destroy_stream(void* stream) {
  return told(cudaStreamDestroy(native(stream)));
}

int query_stream(void* stream) {
  return told(cudaStreamQuery(native(stream)));
}

cudaEvent_t native_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

int create_event(void** event, int timed) {
  cudaEvent_t made = nullptr;
  const cudaError_t status =
      cudaEventCreateWithFlags(&made, timed != 0 ? cudaEventDefault : cudaEventDisableTiming);
  *event = made;
  return told(status);
}

int destroy_event(void* event) {
  return told(cudaEventDestroy(native_event(event)));
}

int record_event(void* event, void* stream) {
  return told(cudaEventRecord(native_event(event), native(stream)));
}

int wait_event(void* stream, void* event) {
  return told(cudaStreamWaitEvent(native(stream), native_event(event)));
}

int query_event(void* event) {
  return told(cudaEventQuery(native_event(event)));
}

int elapsed_ms(float* ms, void* begin, void* end) {
  return told(cudaEventElapsedTime(ms, native_event(begin), native_event(end)));
}

int begin_capture(void* stream) {
  return told(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
}

int end_capture(void* stream, void** graph) {
  *graph = nullptr;
  cudaGraph_t recorded = nullptr;
  cudaError_t status = cudaStreamEndCapture(native(stream), &recorded);
  if (status != cudaSuccess) {
    return told(status);
  }
  cudaGraphExec_t made = nullptr;
  status = cudaGraphInstantiateWithFlags(&made, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  *graph = made;
  return told(status);
}

int launch_graph(void* graph, void* stream) {
  return told(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)));
}

int destroy_graph(void* graph) {
  return told(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

int copy_to_device(void* to, const void* from, std::size_t bytes, void* stream) {
  return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, native(stream)));
}

int copy_to_host(void* to, const void* from, std::size_t bytes, void* stream) {
  return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, native(stream)));
}

int copy(void* to, const void* from, std::size_t bytes, void* stream) {
  return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)));
}

int copy_to_peer(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                 void* stream) {
  return told(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, native(stream)));
}

int fill(void* memory, int byte, std::size_t bytes, void* stream) {
  return told(cudaMemsetAsync(memory, byte, bytes, native(stream)));
}

const Api kApi{kAbiVersion,   error_text,
               versions,      device_count,
               device_info,   peer_access,
               open_peer,     use_device,
               memory_info,   allocate,
               release,       pool_memory,
               register_host, unregister_host,
               create_stream, destroy_stream,
               query_stream,  create_event,
               destroy_event, record_event,
               wait_event,    query_event,
               elapsed_ms,    begin_capture,
               end_capture,   launch_graph,
               destroy_graph, copy_to_device,
               copy_to_host,  copy,
               copy_to_peer,  fill,
               each,          rows,
               update,        kMathApi,
               kNcclApi};

}  // namespace
}  // namespace paceline::cuda

extern "C" __attribute__((visibility("default"))) const paceline::cuda::Api* paceline_cuda_api() {
  return &paceline::cuda::kApi;
}
