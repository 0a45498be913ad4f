// SPDX-License-Identifier: Apache-2.0
// Runs the functors of kernels.h: for_each by a thread per element or per packs of elements,
// for_rows by a warp per row.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "common/core/kernels_each.h"
#include "common/core/lane_team.h"

namespace paceline::cuda {

inline constexpr int kThreads = 256;
/// More blocks than any GPU holds at once; work beyond them is reached by striding, but for packs.
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
__global__ void __launch_bounds__(kThreads) each_kernel(std::int64_t n, kernels::PackCut cut, F f) {
  kernels::run_share(f, n, cut, {blockIdx.x, gridDim.x, static_cast<int>(threadIdx.x), kThreads});
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
  const kernels::PackCut cut = kernels::cut_packs(f, n);
  const std::int64_t threads = kernels::threads_for<F>(n, cut);
  const unsigned blocks = cut.packs > 0 ? static_cast<unsigned>((threads + kThreads - 1) / kThreads)
                                        : blocks_for(threads, kThreads);
  each_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(n, cut, f);
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
