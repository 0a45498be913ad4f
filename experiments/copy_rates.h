// SPDX-License-Identifier: Apache-2.0
// How fast a machine's GPUs copy memory: the ceiling that collectives between them are held to.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/time.h"
#include "common/core/cuda_module.h"

namespace paceline {

/// Bytes per second of plain copies, one at a time and one way. A byte that is copied counts once;
/// NVIDIA's bandwidthTest counts it twice within a device, where it is read and written.
struct CopyRates {
  std::size_t bytes = 0;                     ///< of each copy
  std::vector<double> within;                ///< by GPU: from its memory to its memory
  std::vector<std::vector<double>> between;  ///< [from][to]; 0 where they are the same
  std::vector<std::vector<bool>> direct;     ///< [from][to]: not through the host's memory

  /// Between two GPUs, at least and at most; 0 where there is one.
  [[nodiscard]] double slowest() const;
  [[nodiscard]] double fastest() const;
};

/// Of GPUs 0..gpus-1, each copy of `bytes`: medians of repetitions timed by events on the device,
/// after copies that are not timed. `timeout` bounds each wait. Throws what Gpu and GpuMemory do.
[[nodiscard]] CopyRates measure_copies(const CudaModule& module, int gpus, std::size_t bytes,
                                       Nanoseconds timeout);

}  // namespace paceline
