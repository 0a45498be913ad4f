// SPDX-License-Identifier: Apache-2.0
// What the program and the module libpaceline_cuda.so agree on: one exported function that returns
// tables of functions with C's calling convention. Needs no CUDA header. Any change here raises
// kAbiVersion.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/core/cuda/math_abi.h"
#include "common/core/cuda/nccl_abi.h"
#include "common/core/kernels.h"
#include "common/core/update_info.h"
#include "common/sync/optimizer_spec.h"

namespace paceline::cuda {

inline constexpr std::uint32_t kAbiVersion = 11;

/// Statuses are CUDA's own (cudaError_t); these mean that there is nothing to compute on, that
/// memory is short, and that an event has not been reached. cuDNN's, cuBLAS's and NCCL's are
/// offset, see error_text().
inline constexpr int kSuccess = 0;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kNoDriver = 35;  ///< missing, or older than the module's CUDA
inline constexpr int kNoDevice = 100;
inline constexpr int kNotReady = 600;
inline constexpr int kDnnStatus = 1'000'000;   ///< + cudnnStatus_t
inline constexpr int kBlasStatus = 2'000'000;  ///< + cublasStatus_t
inline constexpr int kNcclStatus = 3'000'000;  ///< + ncclResult_t
inline constexpr int kNoLibrary = 4'000'000;   ///< a library or one of its functions is missing

struct DeviceInfo {
  char name[256];
  char bus_id[32];  ///< PCI, "0000:1a:00.0"
  std::uint64_t memory_bytes;
  std::int32_t major;  ///< compute capability
  std::int32_t minor;
  std::int32_t multiprocessors;
  double memory_bytes_per_second;  ///< the memory's peak rate; 0: not known
};

/// Work is queued on `stream` (a cudaStream_t) of the calling thread's current device and done when
/// query_stream() says so; nothing here waits for it. Pointers in functors and operands are device
/// memory.
struct Api {
  std::uint32_t abi_version;
  /// For cuDNN, cuBLAS and a missing library what the calling thread's last failed call said.
  const char* (*error_text)(int status);

  int (*versions)(int* driver, int* runtime);  ///< CUDA's, as 1000·major + 10·minor
  int (*device_count)(int* count);
  int (*device_info)(int device, DeviceInfo* info);
  int (*peer_access)(int device, int peer, int* possible);
  /// Copies between the two go directly from now on where they can, else as before through the
  /// host's memory; kSuccess in either case.
  int (*open_peer)(int device, int peer);
  int (*use_device)(int device);  ///< makes it the calling thread's current device

  int (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes);
  int (*allocate)(void** memory, std::size_t bytes);
  int (*release)(void* memory);
  /// Of the current device's stream-ordered pool, where products take their workspace from: bytes
  /// in use now, and at most since the process began.
  int (*pool_memory)(std::size_t* used, std::size_t* peak);
  /// Page-locks host memory, so that copies run beside the host's work and other streams'.
  int (*register_host)(void* memory, std::size_t bytes);
  int (*unregister_host)(void* memory);

  int (*create_stream)(void** stream, int high_priority);
  int (*destroy_stream)(void* stream);
  int (*query_stream)(void* stream);  ///< kSuccess: idle; kNotReady

  int (*create_event)(void** event, int timed);
  int (*destroy_event)(void* event);
  int (*record_event)(void* event, void* stream);
  int (*wait_event)(void* stream, void* event);          ///< the stream waits, not the host
  int (*query_event)(void* event);                       ///< kSuccess: reached; kNotReady
  int (*elapsed_ms)(float* ms, void* begin, void* end);  ///< of two timed events, both reached

  /// What the calling thread queues on `stream` until end_capture() is recorded, not run; it must
  /// neither allocate nor wait for the device meanwhile. end_capture() makes a graph of it, or
  /// gives the error that came up; the stream is as before in either case.
  int (*begin_capture)(void* stream);
  int (*end_capture)(void* stream, void** graph);
  int (*launch_graph)(void* graph, void* stream);
  int (*destroy_graph)(void* graph);  ///< what was launched goes on to its end

  int (*copy_to_device)(void* to, const void* from, std::size_t bytes, void* stream);
  int (*copy_to_host)(void* to, const void* from, std::size_t bytes, void* stream);
  int (*copy)(void* to, const void* from, std::size_t bytes, void* stream);  ///< within the device
  /// Between the memory of two devices, `stream` of either.
  int (*copy_to_peer)(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                      void* stream);
  int (*fill)(void* memory, int byte, std::size_t bytes, void* stream);

  /// kernels::for_each and for_rows of the functor whose place in EachFunctors or RowFunctors
  /// (functors.h) is `functor_id`; the functor is copied during the call.
  int (*each)(int functor_id, const void* functor, std::int64_t n, void* stream);
  int (*rows)(int functor_id, const void* functor, std::int64_t rows, void* stream);
  /// Optimizer::apply over a flat arena in one launch.
  int (*update)(const OptimizerSpec* spec, const UpdateInfo* info,
                const kernels::UpdateOperands* operands, std::int64_t elements, void* stream);

  MathApi math;
  NcclApi nccl;
};

inline constexpr const char* kModuleFile = "libpaceline_cuda.so";
inline constexpr const char* kEntryPoint = "paceline_cuda_api";
using EntryPoint = const Api*();

}  // namespace paceline::cuda
