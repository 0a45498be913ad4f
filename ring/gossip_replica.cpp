// SPDX-License-Identifier: Apache-2.0
#include "ring/gossip_replica.h"

#include <algorithm>
#include <utility>

namespace paceline {

void GossipReplica::bind() {
  averagings_.assign(static_cast<std::size_t>(replica_.plan().count()), 0);
  seen_ = averagings_;
}

void GossipReplica::snapshot(BucketId b) {
  const std::scoped_lock lock(mutex_);
  std::ranges::copy(replica_.weights(b), replica_.viewed(b).begin());
  seen_.at(static_cast<std::size_t>(b)) = averagings_.at(static_cast<std::size_t>(b));
}

void GossipReplica::update(BucketId b, const StepInfo& step) {
  const std::scoped_lock lock(mutex_);
  count_staleness(b);
  replica_.update(b, step);
}

bool GossipReplica::update_all(const StepInfo& step) {
  const std::scoped_lock lock(mutex_);
  for (BucketId b = 0; b < replica_.plan().count(); ++b) {
    count_staleness(b);
  }
  return replica_.update_all(step);
}

void GossipReplica::count_staleness(BucketId b) {
  const auto at = static_cast<std::size_t>(b);
  staleness_ = std::max(staleness_, averagings_.at(at) - seen_.at(at));
}

std::int64_t GossipReplica::take_staleness() noexcept {
  return std::exchange(staleness_, 0);
}

void GossipReplica::copy(BucketId b, std::span<float> out) {
  const std::scoped_lock lock(mutex_);
  std::ranges::copy(replica_.weights(b), out.begin());
}

void GossipReplica::meet(BucketId b, std::span<float> theirs) {
  const std::scoped_lock lock(mutex_);
  const std::span<float> mine = replica_.weights(b);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const float change = 0.5F * (theirs[i] - mine[i]);
    mine[i] += change;
    theirs[i] = -change;
  }
  ++averagings_.at(static_cast<std::size_t>(b));
}

void GossipReplica::add(BucketId b, std::span<const float> change) {
  const std::scoped_lock lock(mutex_);
  const std::span<float> mine = replica_.weights(b);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    mine[i] += change[i];
  }
  ++averagings_.at(static_cast<std::size_t>(b));
}

}  // namespace paceline
