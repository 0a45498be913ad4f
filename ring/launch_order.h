// SPDX-License-Identifier: Apache-2.0
// In which order the ranks work on buckets that wait: all in the same one, the bucket that the next
// forward reads first ahead of the others (as in Peng et al. 2019, "ByteScheduler", for whole
// buckets). Which buckets wait differs from rank to rank, so rank 0 decides and tells.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/comm/transport.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// One per rank; used by the communication thread, between collectives.
class LaunchOrder {
 public:
  /// The rank that decides.
  static constexpr int kDecider = 0;

  /// The references outlive this; `stop` ends a wait with Stopped.
  LaunchOrder(Transport& transport, int buckets, Nanoseconds timeout,
              const std::atomic<bool>& stop);

  /// Whether the next launch needs a decision. The first launch of a step does not (only one bucket
  /// is ready then), nor the last one (only one is left).
  [[nodiscard]] bool open() const noexcept {
    return transport_.size() > 1 && launched_ > 0 && launched_ < buckets_ - 1;
  }
  [[nodiscard]] bool decides() const noexcept { return transport_.rank() == kDecider; }

  /// Rank 0: tells the others that `bucket` is next.
  void tell(BucketId bucket);
  /// Other ranks: waits for that; throws TimeoutError naming rank 0, PeerLost, Stopped, or Error
  /// for a bucket that does not exist.
  [[nodiscard]] BucketId ask();

  void launched() noexcept { launched_ = launched_ + 1 == buckets_ ? 0 : launched_ + 1; }

 private:
  void wait(const Ticket& ticket);

  Transport& transport_;
  int buckets_;
  Nanoseconds timeout_;
  const std::atomic<bool>& stop_;
  std::unique_ptr<CommBuffer> choice_;
  int launched_ = 0;  ///< in this step
};

}  // namespace paceline
