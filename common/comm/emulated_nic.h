// SPDX-License-Identifier: Apache-2.0
// The emulated NIC: every node has one full-duplex network card, an egress and an ingress virtual
// clock in memory shared by all processes of the job. Bytes are serialised, never token-bucketed:
// a piece leaves after bytes/rate and arrives after the latency and once the receiver's ingress is
// free, which is what makes a lone server's incast real. Needs no root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "common/base/time.h"

namespace paceline {

class Communicator;

/// One direction of a link. bytes_per_second == 0 means unshaped: everything passes at once.
struct LinkSpec {
  double bytes_per_second = 0.0;
  Nanoseconds latency{0};
  [[nodiscard]] bool shaped() const noexcept { return bytes_per_second > 0.0; }
};

/// Parses "none" or "RATE,LATENCY": RATE in bit/kbit/mbit/gbit per second, LATENCY in ns/us/ms/s.
/// Throws ConfigError naming `key`, the text and what is allowed.
[[nodiscard]] LinkSpec parse_link(std::string_view key, std::string_view text);

/// Senders cut what they send into pieces of at most this many bytes, so that flows interleave.
inline constexpr std::size_t kNicPieceBytes = 16 * 1024;

/// The clocks of all nodes. Lock-free; any thread of any process of the job.
///
/// A sender does, for each piece:
///     depart = fabric.reserve_egress(src, dst, bytes, ready);   // egress begins at `depart`
///     wait until `depart` (it may run ahead by kNicLookahead)
///     arrive = fabric.reserve_ingress(src, dst, bytes, depart);
/// and passes `arrive` along; the receiver shows the piece to its user no earlier than `arrive`.
/// `ready` is when the bytes were given to the card: one that is late to book its next piece (its
/// machine had no core for it) does not idle the wire, as a real card's queue would not.
class NicFabric {
 public:
  /// Collective over `members`: member 0 makes the segment, the rest map it; nothing is left in the
  /// file system. `nodes` clocks pairs; transfers within a node use `intra`, others `inter`.
  static std::unique_ptr<NicFabric> join(Communicator& members, int nodes, const LinkSpec& inter,
                                         const LinkSpec& intra);
  virtual ~NicFabric() = default;

  [[nodiscard]] virtual const LinkSpec& link(int src_node, int dst_node) const noexcept = 0;
  [[nodiscard]] virtual std::int64_t reserve_egress(int src_node, int dst_node, std::size_t bytes,
                                                    std::int64_t ready_ns) noexcept = 0;
  [[nodiscard]] virtual std::int64_t reserve_ingress(int src_node, int dst_node, std::size_t bytes,
                                                     std::int64_t depart_ns) noexcept = 0;
};

/// How far before its departure a sender may hand a piece to the real transport.
inline constexpr Nanoseconds kNicLookahead = std::chrono::microseconds(200);

}  // namespace paceline
