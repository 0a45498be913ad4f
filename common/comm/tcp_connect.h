// SPDX-License-Identifier: Apache-2.0
// Sets up the TCP connections between ranks. Names are resolved, IPv4 and IPv6 alike; a connection
// counts only after both ends have shown the secret that the job's ranks exchanged beforehand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/abort.h"
#include "common/base/time.h"
#include "common/comm/file_descriptor.h"

namespace paceline {

/// How a rank is reached.
struct TcpEndpoint {
  std::string host;
  std::uint16_t port = 0;
  std::uint64_t secret = 0;  ///< what a hello to this rank must carry
};

/// Use: construct (listens), tell all ranks own_endpoint(), then connect() on every rank.
class TcpConnector {
 public:
  /// Listens on a free port of `host`. Throws ConfigError naming the host when it cannot.
  TcpConnector(int self, const std::string& host);
  ~TcpConnector();
  TcpConnector(const TcpConnector&) = delete;
  TcpConnector& operator=(const TcpConnector&) = delete;

  [[nodiscard]] const TcpEndpoint& own_endpoint() const noexcept;

  /// Connects to the `peers` below this rank and accepts those above, `connections` times each.
  /// `endpoints` is indexed by rank. Returns non-blocking sockets, [rank][connection] (none for
  /// ranks that are not in `peers`). Strangers are dropped. Throws TimeoutError naming who is
  /// missing, PeerLost naming who refused, the reason of `abort`.
  [[nodiscard]] std::vector<std::vector<FileDescriptor>> connect(
      const std::vector<int>& peers, const std::vector<TcpEndpoint>& endpoints, int connections,
      Nanoseconds timeout, const AbortToken& abort);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline
