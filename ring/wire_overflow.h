// SPDX-License-Identifier: Apache-2.0
// What a gradient that does not fit the format on the wire means, in one place for CPU and GPU; and
// how a GPU tells the host of it without being waited for.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/buffer.h"
#include "common/core/gpu/gpu.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// Throws Error: bucket b's mean gradient is not finite in fp16.
[[noreturn]] void throw_wire_overflow(int rank, BucketId b);

/// A mark for each bucket in device memory, set and never cleared, and a copy of them on the host
/// that is some steps old. Queues on `stream`, and ends when the work there has, or the Gpu keeps
/// the copy; the training thread's.
class WireOverflow {
 public:
  WireOverflow(Gpu& gpu, GpuStream& stream, int rank, int buckets);
  ~WireOverflow();
  WireOverflow(const WireOverflow&) = delete;
  WireOverflow& operator=(const WireOverflow&) = delete;

  /// In device memory: what is queued writes a 1 there.
  [[nodiscard]] std::int32_t* mark(BucketId b) const noexcept {
    return marks_.as<std::int32_t>() + b;
  }
  /// Queues a copy of the marks, unless one is under way.
  void send();
  /// Does not wait: throws as throw_wire_overflow() if a copy has come and has a mark.
  void check();

 private:
  Gpu& gpu_;
  GpuStream& stream_;
  int rank_;
  GpuMemory marks_;
  Buffer host_;
  std::optional<PinnedRange> pinned_;
  GpuEvent copied_;
  bool under_way_ = false;
};

}  // namespace paceline
