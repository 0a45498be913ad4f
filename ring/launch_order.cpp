// SPDX-License-Identifier: Apache-2.0
#include "ring/launch_order.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "common/base/error.h"
#include "ring/peer_wait.h"

namespace paceline {

LaunchOrder::LaunchOrder(Transport& transport, int buckets, Nanoseconds timeout,
                         const std::atomic<bool>& stop)
    : transport_(transport),
      buckets_(buckets),
      timeout_(timeout),
      stop_(stop),
      choice_(transport.allocate(sizeof(std::int32_t))) {}

void LaunchOrder::tell(BucketId bucket) {
  const auto value = static_cast<std::int32_t>(bucket);
  const std::span<std::byte> bytes = choice_->bytes().first(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  std::vector<Ticket> sent;
  for (int peer = 1; peer < transport_.size(); ++peer) {
    sent.push_back(transport_.isend(peer, bytes));
  }
  for (const Ticket& ticket : sent) {
    wait(ticket);
  }
}

BucketId LaunchOrder::ask() {
  std::int32_t value = 0;
  const std::span<std::byte> bytes = choice_->bytes().first(sizeof(value));
  wait(transport_.irecv(0, bytes, Arrival::copy()));
  std::memcpy(&value, bytes.data(), sizeof(value));
  if (value < 0 || value >= buckets_) {
    throw Error(fmt::format("rank {}: rank 0 wants bucket {} next, there are {}", transport_.rank(),
                            value, buckets_));
  }
  return value;
}

void LaunchOrder::wait(const Ticket& ticket) {
  wait_for_peer(transport_, ticket, timeout_, stop_,
                ticket.is_send ? "take the order of buckets" : "tell the order of buckets");
}

}  // namespace paceline
