// SPDX-License-Identifier: Apache-2.0
// Paces one flow through the emulated NIC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "common/base/time.h"
#include "common/comm/emulated_nic.h"

namespace paceline {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The flow from one rank to another. Used by the sender's thread. One piece is reserved at a time,
/// so that flows which share a NIC interleave.
class Pacer {
 public:
  /// `fabric` may be null: unshaped.
  Pacer(NicFabric* fabric, int src_node, int dst_node)
      : fabric_(fabric != nullptr && fabric->link(src_node, dst_node).shaped() ? fabric : nullptr),
        src_node_(src_node),
        dst_node_(dst_node) {}

  [[nodiscard]] bool shaped() const noexcept { return fabric_ != nullptr; }

  /// Asks to send the flow's next piece (the same `bytes` until granted), which was there to be
  /// sent at `ready_ns`. Returns the time at which it arrives, or nothing while it is too early to
  /// hand it to the real transport.
  [[nodiscard]] std::optional<std::int64_t> depart(std::size_t bytes,
                                                   std::int64_t ready_ns) noexcept {
    if (depart_ns_ == kNever) {
      depart_ns_ = fabric_->reserve_egress(src_node_, dst_node_, bytes, ready_ns);
    }
    if (now_ns() < due_ns()) {
      return std::nullopt;
    }
    const std::int64_t arrive = fabric_->reserve_ingress(src_node_, dst_node_, bytes, depart_ns_);
    depart_ns_ = kNever;
    return arrive;
  }

  /// When the piece asked for may leave; kNever if none waits.
  [[nodiscard]] std::int64_t due_ns() const noexcept {
    return depart_ns_ == kNever ? kNever : depart_ns_ - kNicLookahead.count();
  }

 private:
  NicFabric* fabric_;
  int src_node_;
  int dst_node_;
  std::int64_t depart_ns_ = kNever;
};

}  // namespace paceline
