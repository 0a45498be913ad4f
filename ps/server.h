// SPDX-License-Identifier: Apache-2.0
// Runs a ServerState over ZeroMQ on one thread.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "common/base/abort.h"
#include "ps/mailbox.h"
#include "ps/paced_link.h"
#include "ps/server_state.h"

namespace paceline {

/// Where a server and its workers sit on the emulated network; `fabric` null: not shaped.
struct ServerPlace {
  NicFabric* fabric = nullptr;
  int node = 0;
  std::vector<int> worker_nodes;
};

/// What a server is made from.
struct ServerSetup {
  ServerIdentity identity;
  ServerPlace place;
  ShardMaker make_shard = make_host_shard;
};

/// Everything is used by the thread that calls run(), but for stop().
class Server {
 public:
  Server(ServerMailbox& mailbox, const ServerSetup& setup, AbortToken& abort);

  /// Serves until all workers have said goodbye or stop() was called. Throws the abort reason.
  void run();
  /// Any thread: what its keys take; the most so far where it varies.
  [[nodiscard]] MemoryUse memory() const noexcept;
  /// Any thread: run() returns soon.
  void stop() noexcept;

 private:
  bool receive();
  void accept(Incoming incoming);
  [[nodiscard]] bool known(const Incoming& incoming) const;
  void refuse(const Incoming& incoming, const std::string& reason);
  bool handle_arrived();
  void note_memory();

  ServerMailbox& mailbox_;
  ServerIdentity identity_;
  AbortToken& abort_;
  ServerState state_;
  PacedSender sender_;
  ArrivalQueue arrivals_;
  std::vector<std::string> routes_;  ///< by worker; empty before its hello
  std::vector<Outgoing> answers_;
  Wakeup wakeup_;
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> weight_bytes_{0};
  std::atomic<std::size_t> gradient_bytes_{0};
  std::atomic<std::size_t> optimizer_bytes_{0};
  std::atomic<std::size_t> staging_bytes_{0};
};

}  // namespace paceline
