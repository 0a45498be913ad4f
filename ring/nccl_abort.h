// SPDX-License-Identifier: Apache-2.0
// How NCCL's communicators of a rank end when something failed.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "common/base/time.h"
#include "common/core/gpu/gpu.h"

namespace paceline {

/// An abort ends its communicator's kernels and then frees memory, for which CUDA waits until the
/// whole device is idle: until kernels of the rank's other communicators have ended too, and those
/// end only when they are aborted themselves. So all are aborted at once: in one group where NCCL
/// can do that (2.22), else each by a thread of its own (its rule of one thread per GPU is about
/// the order of launches, and these launch nothing). Either way an abort first tells its kernels to
/// end and then waits. Nobody who reports the failure waits for it.
class NcclAbort {
 public:
  /// Begins. `version` as NCCL tells it; nobody uses `comms` from here on.
  NcclAbort(const Gpu& gpu, int version, const std::vector<void*>& comms, Nanoseconds limit);
  /// Waits for the end, until `limit` after the beginning. If that is not enough, the Gpu is taken
  /// to be stuck, and the threads are left to the process's end.
  ~NcclAbort();
  NcclAbort(const NcclAbort&) = delete;
  NcclAbort& operator=(const NcclAbort&) = delete;

 private:
  struct Work;
  void begin(const std::vector<void*>& comms);

  std::shared_ptr<const GpuWaits> waits_;
  Deadline deadline_;
  std::shared_ptr<Work> work_;  ///< threads that are left hold it
  std::vector<std::thread> threads_;
};

}  // namespace paceline
