// SPDX-License-Identifier: Apache-2.0
// The weights of one rank of asynchronous gossip, which two threads change.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "ring/replica.h"

namespace paceline {

/// A rank's own x, apart from the copy that its trainer reads. The training thread applies updates
/// to it, the communication thread averages it with partners, each bucket at a time and under one
/// lock that is held for arithmetic alone, never for a message. What the two do to a bucket are
/// additions, so neither undoes the other's, in whatever order they come.
class GossipReplica {
 public:
  /// `replica` is bound apart before the first call and outlives this.
  explicit GossipReplica(Replica& replica) : replica_(replica) {}
  /// Behind the replica's.
  void bind();

  // --- training thread

  /// The trainer reads bucket b as it is now.
  void snapshot(BucketId b);
  /// As Replica's, on x as it is now; the gradient is of the last snapshot.
  void update(BucketId b, const StepInfo& step);
  [[nodiscard]] bool update_all(const StepInfo& step);
  /// Of the updates since the last call: averagings of a bucket between its snapshot and its
  /// update, the most of all buckets.
  [[nodiscard]] std::int64_t take_staleness() noexcept;

  // --- communication thread

  void copy(BucketId b, std::span<float> out);
  /// x goes half the way to `theirs`, which becomes what brings the partner to the same place: the
  /// opposite change, so that the sum over the two stays what it was (to rounding).
  void meet(BucketId b, std::span<float> theirs);
  /// The other half of meet(): the partner's answer.
  void add(BucketId b, std::span<const float> change);

 private:
  void count_staleness(BucketId b);

  Replica& replica_;
  std::mutex mutex_;                      ///< of the replica's weights and what follows
  std::vector<std::int64_t> averagings_;  ///< by bucket
  std::vector<std::int64_t> seen_;        ///< of them, in the last snapshot
  std::int64_t staleness_ = 0;            ///< training thread's alone
};

}  // namespace paceline
