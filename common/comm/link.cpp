// SPDX-License-Identifier: Apache-2.0
#include "common/comm/link.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"

namespace paceline {

std::uint64_t Link::post_send(std::span<const std::byte> data) {
  sends_.push_back(
      {.data = data.data(), .bytes = data.size(), .posted_ns = pacer_.shaped() ? now_ns() : 0});
  return ++sends_posted_;
}

std::uint64_t Link::post_recv(std::span<std::byte> data, const Arrival& arrival) {
  if (arrival.add && data.size() % size_of(arrival.type) != 0) {
    throw Error(fmt::format(
        "rank {}: a receive that adds elements of {} bytes cannot have {} bytes (from rank {})",
        self_, size_of(arrival.type), data.size(), peer_));
  }
  recvs_.push_back({.data = data.data(), .bytes = data.size(), .arrival = arrival});
  return ++recvs_posted_;
}

std::int64_t Link::next_event_ns() const noexcept {
  const std::int64_t shown = receiving_ > 0 ? recvs_.front().arrive_ns : kNever;
  return std::min(shown, pacer_.due_ns());
}

bool Link::complete_receives() {
  bool moved = false;
  while (receiving_ > 0 &&
         (recvs_.front().arrive_ns == 0 || recvs_.front().arrive_ns <= now_ns())) {
    recvs_.pop_front();
    --receiving_;
    moved = true;
  }
  return moved;
}

void Link::throw_length_mismatch(std::uint64_t sent, std::uint64_t posted) const {
  throw Error(fmt::format("rank {}: rank {} sent {} bytes where the receive expects {}", self_,
                          peer_, sent, posted));
}

}  // namespace paceline
