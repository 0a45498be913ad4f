// SPDX-License-Identifier: Apache-2.0
// Many-to-one messages over ZeroMQ: one ROUTER per server, one DEALER per worker and server. Each
// socket belongs to the one thread that uses its mailbox.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/time.h"
#include "common/comm/file_descriptor.h"
#include "ps/payload.h"
#include "ps/wire.h"

namespace paceline {

struct MailboxOptions {
  std::string host = "127.0.0.1";  ///< where servers listen for tcp (IPv4 or IPv6)
  std::string transport = "auto";  ///< auto | tcp | ipc
  Nanoseconds timeout = std::chrono::seconds(30);
};

/// Where a server listens. `machine` names the machine and its network namespace: a worker that
/// reads the same may use ipc.
struct ServerEndpoints {
  std::string tcp;
  std::string ipc;
  std::string machine;
};

/// As one line of text and back; parse throws Error for what is not such a line.
[[nodiscard]] std::string to_text(const ServerEndpoints& endpoints);
[[nodiscard]] ServerEndpoints parse_endpoints(const std::string& text);
/// ipc where the server offers it on this machine, else tcp.
[[nodiscard]] std::string choose_endpoint(const ServerEndpoints& endpoints);

/// A message as a socket delivered it. `problem` says why it is none (then the rest is empty).
struct Incoming {
  std::string route;  ///< at a server: whom to answer
  Header header;
  Payload payload;
  std::string problem;
};

/// Wakes a thread that waits in wait_readable. signal() is callable from any thread.
class Wakeup {
 public:
  Wakeup();
  void signal() noexcept;
  void clear() noexcept;
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  FileDescriptor fd_;
};

/// Waits until one of `fds` is readable or CLOCK_MONOTONIC reaches `until_ns`, at most
/// kAbortPollInterval. Precise to microseconds.
void wait_readable(std::span<const int> fds, std::int64_t until_ns);

/// The server's socket. Payloads are sent without a copy and received without one.
class ServerMailbox {
 public:
  /// Binds a free tcp port of `host` and, but for transport=tcp, an abstract Unix socket. Throws
  /// ConfigError naming the endpoint when it cannot.
  explicit ServerMailbox(const MailboxOptions& options);
  ~ServerMailbox();
  ServerMailbox(const ServerMailbox&) = delete;
  ServerMailbox& operator=(const ServerMailbox&) = delete;

  [[nodiscard]] const ServerEndpoints& endpoints() const noexcept { return endpoints_; }
  /// The next message if there is one. Call until empty before waiting on fd().
  [[nodiscard]] std::optional<Incoming> receive();
  enum class Sent : std::uint8_t { yes, full, gone };
  /// gone: there is no such peer (any more).
  [[nodiscard]] Sent send(const std::string& route, const Header& header, const Payload& payload);
  [[nodiscard]] int fd() const;
  /// How long what was sent may take to leave after destruction.
  void set_linger(Nanoseconds linger);

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  ServerEndpoints endpoints_;
};

/// A worker's sockets, one per server.
class WorkerMailbox {
 public:
  /// Starts to connect to `endpoints[server]`; does not wait.
  WorkerMailbox(const MailboxOptions& options, const std::vector<std::string>& endpoints);
  ~WorkerMailbox();
  WorkerMailbox(const WorkerMailbox&) = delete;
  WorkerMailbox& operator=(const WorkerMailbox&) = delete;

  [[nodiscard]] std::optional<Incoming> receive(int server);
  /// False while the connection is not up or its queue is full.
  [[nodiscard]] bool send(int server, const Header& header, const Payload& payload);
  [[nodiscard]] const std::vector<int>& fds() const noexcept { return fds_; }
  void set_linger(Nanoseconds linger);

 private:
  zmq::context_t context_;
  std::vector<zmq::socket_t> sockets_;
  std::vector<int> fds_;
};

/// Asks the allocator to keep the memory of freed messages: mapping and touching it anew for every
/// message costs more than sending it. Process-wide; call before the first mailbox.
void keep_message_memory() noexcept;

}  // namespace paceline
