// SPDX-License-Identifier: Apache-2.0
// Watches the collectives on the communication stream, so that one that never ends becomes an
// error.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "common/core/gpu/gpu_stopwatch.h"
#include "common/sync/synchronizer.h"
#include "ring/nccl_communicator.h"

namespace paceline {

/// Its thread looks every kAbortPollInterval at the job's AbortToken, at NCCL's asynchronous errors
/// and at how long the oldest collective has been under way on the device; what it finds fails
/// `comms`. The methods are the training thread's.
class NcclMonitor {
 public:
  /// All outlive it.
  NcclMonitor(NcclCommunicators& comms, Gpu& gpu, GpuStream& stream, Nanoseconds timeout);
  ~NcclMonitor();
  NcclMonitor(const NcclMonitor&) = delete;
  NcclMonitor& operator=(const NcclMonitor&) = delete;

  /// The stream's next work is the collective of a bucket, or of statistics; end() follows it.
  void begin(std::optional<BucketId> bucket, std::int64_t step);
  void end();

  /// Whether all are done.
  [[nodiscard]] bool idle();
  /// Device time between begin and end of those done since the last call, waiting for slower ranks
  /// included.
  [[nodiscard]] double take_seconds();

 private:
  struct Flight {
    std::optional<BucketId> bucket;  ///< none: statistics
    std::int64_t step = 0;
    std::int64_t seen_ns = 0;  ///< when it was seen to have begun; 0: not yet
  };

  void loop();
  void look();
  void collect();

  NcclCommunicators& comms_;
  Gpu& gpu_;
  Nanoseconds timeout_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable stopped_;
  bool stop_ = false;
  Flight next_;
  GpuStopwatch watch_;
  std::deque<Flight> flights_;

  std::thread thread_;
};

}  // namespace paceline
