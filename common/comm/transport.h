// SPDX-License-Identifier: Apache-2.0
// Point-to-point bytes between the ranks of a job: what collectives run over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/abort.h"
#include "common/base/time.h"
#include "common/comm/emulated_nic.h"
#include "common/comm/topology.h"

namespace paceline {

class Communicator;

enum class DataType : std::uint8_t { f32, i64, f16, bf16 };

[[nodiscard]] constexpr std::size_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::f32:
      return 4;
    case DataType::i64:
      return 8;
    default:
      return 2;
  }
}

/// What an arriving message does to the receiver's memory.
struct Arrival {
  bool add = false;               ///< false: dst = message; true: dst = dst + message
  DataType type = DataType::f32;  ///< element type when add
  static constexpr Arrival copy() noexcept { return {}; }
  static constexpr Arrival sum(DataType type) noexcept { return {true, type}; }
};

/// Names a posted operation. Operations to (from) one peer complete in posting order.
struct Ticket {
  std::int32_t peer = 0;
  bool is_send = false;
  std::uint64_t sequence = 0;  ///< counts from 1 per peer and direction
};

/// Memory to send from and receive into that the transport reaches best (shared with peers of the
/// same node where it can). Freed by its destructor; must die before its Transport.
class CommBuffer {
 public:
  CommBuffer() = default;
  virtual ~CommBuffer() = default;
  CommBuffer(const CommBuffer&) = delete;
  CommBuffer& operator=(const CommBuffer&) = delete;
  /// Zeroed, 4 KiB-aligned, touched.
  [[nodiscard]] virtual std::span<std::byte> bytes() noexcept = 0;
};

/// One per rank; used by one thread at a time. Any memory may be sent or received; allocate()'s is
/// fastest. Memory given to isend/irecv is borrowed until done(ticket): it must not be written
/// (send) or touched (receive) before. Between an ordered pair of ranks, the k-th send matches the
/// k-th receive; lengths must be equal, else the receiver throws Error naming both. Zero-length
/// messages are valid and are delivered. rank() itself is a valid peer for neither.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;

  [[nodiscard]] virtual std::unique_ptr<CommBuffer> allocate(std::size_t bytes) = 0;

  [[nodiscard]] virtual Ticket isend(int peer, std::span<const std::byte> data) = 0;
  [[nodiscard]] virtual Ticket irecv(int peer, std::span<std::byte> data, Arrival arrival) = 0;

  /// Moves what can be moved without blocking; true if anything did. Throws PeerLost, Error, or the
  /// abort reason.
  virtual bool progress() = 0;
  [[nodiscard]] virtual bool done(const Ticket& ticket) const noexcept = 0;
  /// Called when progress() found nothing to do: spins, yields or sleeps (never past `deadline`
  /// nor kAbortPollInterval) until something may have changed.
  virtual void idle(const Deadline& deadline) = 0;

  /// progress() and idle() until done. Throws TimeoutError naming the peer at the deadline.
  void wait(const Ticket& ticket, const Deadline& deadline);

  /// Afterwards no peer reads memory given to isend; what was not sent never will be. Waits for a
  /// copy of one piece at most. For an end before the operations are done: whoever frees the memory
  /// calls it first.
  virtual void leave() noexcept {}

  /// Payload and framing bytes that left this rank so far.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const noexcept = 0;
  /// "inproc", "shm", "tcp" or, where peers differ, "shm+tcp".
  [[nodiscard]] virtual std::string name() const = 0;
};

struct TransportOptions {
  std::string kind = "auto";  ///< auto | inproc | shm | tcp. auto: inproc between threads of one
                              ///< process, shm between ranks of one node, tcp between nodes
  std::string host = "127.0.0.1";
  int tcp_connections = 1;
  Nanoseconds timeout = std::chrono::seconds(30);  ///< of set-up
};

/// Collective over `workers`, whose ranks become the transport's. `fabric` (may be null: unshaped)
/// and `abort` outlive it.
[[nodiscard]] std::unique_ptr<Transport> make_transport(const TransportOptions& options,
                                                        Communicator& workers,
                                                        const Topology& topology, NicFabric* fabric,
                                                        AbortToken& abort);

}  // namespace paceline
