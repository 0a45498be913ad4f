// SPDX-License-Identifier: Apache-2.0
// Runs the functors of kernels.h: for_each by a thread per element, for_rows by a warp per row.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "common/core/lane_team.h"

namespace paceline::cuda {

inline constexpr int kThreads = 256;
/// More blocks than any GPU holds at once; work beyond them is reached by striding.
inline constexpr std::int64_t kMostBlocks = 1 << 16;

struct WarpExchange {
  static constexpr int kLanes = 32;
  [[nodiscard]] __device__ std::int64_t lane() const { return threadIdx.x % kLanes; }
  template <typename T>
  [[nodiscard]] __device__ T across(T value, int mask) const {
    __syncwarp();  // orders the lanes' memory accesses, which the shuffle alone does not
    return __shfl_xor_sync(0xffffffffU, value, mask);
  }
};

template <typename F>
__global__ void __launch_bounds__(kThreads) each_kernel(std::int64_t n, F f) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += stride) {
    f(i);
  }
}

template <typename F>
__global__ void __launch_bounds__(kThreads) rows_kernel(std::int64_t rows, F f) {
  constexpr std::int64_t kWarps = kThreads / WarpExchange::kLanes;
  const kernels::LaneTeam<WarpExchange> team{WarpExchange{}};
  const std::int64_t stride = gridDim.x * kWarps;
  for (std::int64_t row = blockIdx.x * kWarps + threadIdx.x / WarpExchange::kLanes; row < rows;
       row += stride) {
    f(team, row);
  }
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>(std::min((items + per_block - 1) / per_block, kMostBlocks));
}

template <typename F>
int for_each(std::int64_t n, const F& f, void* stream) {
  if (n <= 0) {
    return cudaSuccess;
  }
  each_kernel<<<blocks_for(n, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(n, f);
  return cudaGetLastError();
}

template <typename F>
int for_rows(std::int64_t rows, const F& f, void* stream) {
  if (rows <= 0) {
    return cudaSuccess;
  }
  const unsigned blocks = blocks_for(rows, kThreads / WarpExchange::kLanes);
  rows_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows, f);
  return cudaGetLastError();
}

/// launch(functor) for the one at place `id` of a list in functors.h.
template <typename List, int Place = 0, typename Launch>
int launch_listed(int id, const void* functor, const Launch& launch) {
  if constexpr (Place < static_cast<int>(std::tuple_size_v<List>)) {
    if (id == Place) {
      return launch(*static_cast<const std::tuple_element_t<Place, List>*>(functor));
    }
    return launch_listed<List, Place + 1>(id, functor, launch);
  } else {
    return cudaErrorInvalidValue;
  }
}

}  // namespace paceline::cuda
