// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm's statistics through NCCL.
#pragma once

#include "common/core/gpu/device_sums.h"
#include "ring/nccl_monitor.h"

namespace paceline {

/// On the communication stream, between the buckets, in the order in which the training thread
/// asks: all ranks ask in one order, and work of two streams on NCCL's communicators could wait for
/// each other.
class NcclStatistics final : public DeviceSums {
 public:
  /// All outlive it. `step` is the one under way, which errors name.
  NcclStatistics(Gpu& gpu, GpuStream& stream, NcclCommunicators& comms, NcclMonitor& monitor,
                 const StepInfo& step)
      : stream_(stream), comms_(comms), monitor_(monitor), step_(step), there_(gpu), summed_(gpu) {}

  void sum(std::span<double> values, GpuStream& stream) override;

 private:
  GpuStream& stream_;
  NcclCommunicators& comms_;
  NcclMonitor& monitor_;
  const StepInfo& step_;
  GpuEvent there_;
  GpuEvent summed_;
};

}  // namespace paceline
