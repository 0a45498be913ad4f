// SPDX-License-Identifier: Apache-2.0
// The emulated NIC under message sockets. The bytes of a message travel as fast as the machine can;
// its sender books them piece by piece with the NicFabric and tells the receiver in a `stamp` when
// the last one arrives. The receiver shows the message to nobody before.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/comm/emulated_nic.h"
#include "ps/server_state.h"

namespace paceline {

inline constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::max();

/// Sending side, one per mailbox and thread. Where nothing is shaped it passes messages on.
class PacedSender {
 public:
  /// `peer_nodes[p]` is the node of peer p; `fabric` may be null and outlives this.
  PacedSender(NicFabric* fabric, int node, std::vector<int> peer_nodes);

  /// Takes a message. Of those to one peer, higher priorities get the wire first, then older ones;
  /// peers share it in turns of one piece.
  void enqueue(Outgoing message);

  /// Hands to `transmit` what may leave at `now_ns`; it returns false where the peer's socket is
  /// full (the message stays). Returns when to call again, kNoTime if nothing waits for time.
  std::int64_t pump(std::int64_t now_ns, const std::function<bool(const Outgoing&)>& transmit);

  /// Nothing is queued.
  [[nodiscard]] bool idle() const noexcept;
  /// Header and payload bytes taken so far, stamps left out.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Flow {
    Header header;  ///< of the message that the bytes belong to
    std::size_t left = 0;
    int priority = 0;
    std::int64_t queued_ns = 0;
    std::int64_t arrive_ns = 0;
  };
  struct Peer {
    int node = 0;
    std::uint64_t sequence = 0;
    std::deque<Outgoing> ready;
    std::vector<Flow> flows;
  };
  struct Piece {
    std::size_t peer;
    std::size_t flow;
    std::size_t bytes;
    std::int64_t depart_ns;
  };

  bool begin_piece();
  void finish_piece();

  NicFabric* fabric_;
  int node_;
  std::vector<Peer> peers_;
  std::optional<Piece> piece_;
  std::size_t turn_ = 0;
  std::uint64_t bytes_ = 0;
};

/// Receiving side: holds stamped messages until they arrive.
class ArrivalQueue {
 public:
  struct Message {
    int peer = 0;
    Header header;
    Payload payload;
  };

  /// Takes what a peer's socket delivered. Throws WireError for a stamp of an unknown message and
  /// for more than 65536 messages without one.
  void put(Message message);
  /// The next message that has arrived by `now_ns`.
  [[nodiscard]] std::optional<Message> next(std::int64_t now_ns);
  /// When the next held one arrives, kNoTime if none is stamped.
  [[nodiscard]] std::int64_t next_arrival() const noexcept;

 private:
  std::deque<Message> now_;
  std::map<std::pair<int, std::uint64_t>, Message> unstamped_;
  std::multimap<std::int64_t, Message> arriving_;
};

}  // namespace paceline
