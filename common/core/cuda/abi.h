// SPDX-License-Identifier: Apache-2.0
// What the program and the module libpaceline_cuda.so agree on: one exported function that returns
// a table of functions with C's calling convention. Needs no CUDA header. Any change here raises
// kAbiVersion.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/core/kernels.h"
#include "common/core/update_info.h"
#include "common/sync/optimizer_spec.h"

namespace paceline::cuda {

inline constexpr std::uint32_t kAbiVersion = 1;

/// Statuses are CUDA's own (cudaError_t); these two mean that there is nothing to compute on.
inline constexpr int kSuccess = 0;
inline constexpr int kNoDriver = 35;  ///< missing, or older than the module's CUDA
inline constexpr int kNoDevice = 100;

struct DeviceInfo {
  char name[256];
  std::uint64_t memory_bytes;
  std::int32_t major;  ///< compute capability
  std::int32_t minor;
};

/// Work is queued on `stream` (a cudaStream_t) of the calling thread's current device and done when
/// synchronize() returns. Pointers in functors and operands are device memory.
struct Api {
  std::uint32_t abi_version;
  const char* (*error_text)(int status);

  int (*versions)(int* driver, int* runtime);  ///< CUDA's, as 1000·major + 10·minor
  int (*device_count)(int* count);
  int (*device_info)(int device, DeviceInfo* info);
  int (*use_device)(int device);  ///< makes it the calling thread's current device

  int (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes);
  int (*allocate)(void** memory, std::size_t bytes);
  int (*release)(void* memory);
  int (*create_stream)(void** stream);
  int (*destroy_stream)(void* stream);
  int (*synchronize)(void* stream);
  int (*copy_to_device)(void* to, const void* from, std::size_t bytes, void* stream);
  int (*copy_to_host)(void* to, const void* from, std::size_t bytes, void* stream);

  int (*bias_gradient)(const kernels::BiasGradient* functor, void* stream);
  int (*max_pool_forward)(const kernels::MaxPoolForward* functor, std::int64_t rows, void* stream);
  int (*max_pool_backward)(const kernels::MaxPoolBackward* functor, std::int64_t rows,
                           void* stream);
  int (*softmax_cross_entropy)(const kernels::SoftmaxCrossEntropy* functor, std::int64_t rows,
                               void* stream);
  /// Optimizer::apply over a flat arena in one launch.
  int (*update)(const OptimizerSpec* spec, const UpdateInfo* info,
                const kernels::UpdateOperands* operands, std::int64_t elements, void* stream);
};

inline constexpr const char* kModuleFile = "libpaceline_cuda.so";
inline constexpr const char* kEntryPoint = "paceline_cuda_api";
using EntryPoint = const Api*();

}  // namespace paceline::cuda
