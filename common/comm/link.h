// SPDX-License-Identifier: Apache-2.0
// What a MeshTransport has per peer: two first-in-first-out queues of operations and a way to move
// them. Subclasses move bytes through shared memory (memory_link.h) or sockets (tcp_link.h).
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/comm/pacer.h"
#include "common/comm/transport.h"

namespace paceline {

/// One ordered pair of queues to one peer. Used by the transport's thread only.
class Link {
 public:
  Link(int self, int peer, const Pacer& pacer) : pacer_(pacer), self_(self), peer_(peer) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] int peer() const noexcept { return peer_; }

  /// Both return the operation's sequence number, which counts from 1.
  std::uint64_t post_send(std::span<const std::byte> data);
  /// Throws Error when `arrival` adds and the length is no multiple of the element.
  std::uint64_t post_recv(std::span<std::byte> data, const Arrival& arrival);

  [[nodiscard]] bool send_done(std::uint64_t sequence) const noexcept {
    return sequence + sends_.size() <= sends_posted_;
  }
  [[nodiscard]] bool recv_done(std::uint64_t sequence) const noexcept {
    return sequence + recvs_.size() <= recvs_posted_;
  }
  [[nodiscard]] bool pending() const noexcept { return !sends_.empty() || !recvs_.empty(); }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }

  /// Moves what can be moved without blocking; true if anything did. Throws PeerLost, Error.
  virtual bool progress() = 0;
  /// See Transport::leave().
  virtual void leave() noexcept {}
  /// Adds the descriptors whose readiness would let progress() move something.
  virtual void add_poll_descriptors(std::vector<pollfd>& descriptors) const = 0;
  /// When the emulated NIC lets something happen next; kNever if it holds nothing back.
  [[nodiscard]] std::int64_t next_event_ns() const noexcept;

 protected:
  struct Send {
    const std::byte* data;
    std::size_t bytes;
    std::int64_t posted_ns = 0;     ///< where the link is shaped
    std::size_t moved = 0;          ///< bytes handed over
    std::uint64_t complete_at = 0;  ///< the subclass's mark that completes it
  };
  struct Recv {
    std::byte* data;
    std::size_t bytes;
    Arrival arrival;
    std::size_t moved = 0;       ///< bytes that have been copied or added
    std::int64_t arrive_ns = 0;  ///< emulated arrival of the last piece; 0: at once
    bool all_moved = false;      ///< for subclasses that receive messages out of order
  };

  /// Numbers, from 0, of the messages at the front of the queues.
  [[nodiscard]] std::uint64_t first_send() const noexcept { return sends_posted_ - sends_.size(); }
  [[nodiscard]] std::uint64_t first_recv() const noexcept { return recvs_posted_ - recvs_.size(); }

  /// Shows fully received messages whose emulated arrival has passed; true if any.
  bool complete_receives();
  /// Error that names both lengths.
  [[noreturn]] void throw_length_mismatch(std::uint64_t sent, std::uint64_t posted) const;

  Pacer pacer_;
  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
  std::size_t sending_ = 0;    ///< sends_ before this one are handed over entirely
  std::size_t receiving_ = 0;  ///< recvs_ before this one have all their bytes
  std::uint64_t bytes_sent_ = 0;
  int self_;
  int peer_;

 private:
  std::uint64_t sends_posted_ = 0;
  std::uint64_t recvs_posted_ = 0;
};

}  // namespace paceline
