// SPDX-License-Identifier: Apache-2.0
#include "ps/mailbox.h"

#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <random>

#include "common/base/abort.h"
#include "common/base/error.h"

namespace paceline {

namespace {

/// Smaller payloads are copied into the message: cheaper than a reference count and a callback.
constexpr std::size_t kCopyBelow = 256;
constexpr int kHighWaterMark = 16384;

void release_payload(void* /*data*/, void* hint) {
  delete static_cast<Payload*>(hint);
}

zmq::message_t to_message(const Payload& payload) {
  const auto bytes = payload.bytes();
  if (bytes.size() < kCopyBelow) {
    return {bytes.data(), bytes.size()};
  }
  auto* kept = new Payload(payload);
  // ZeroMQ only reads what it sends; its interface has no const.
  return {const_cast<std::byte*>(bytes.data()), bytes.size(), release_payload, kept};
}

/// A payload on the memory that ZeroMQ received into; copied only where that is not aligned for
/// floats, which happens to messages under 8 KiB.
Payload to_payload(zmq::message_t&& message) {
  const std::span bytes(static_cast<const std::byte*>(message.data()), message.size());
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) != 0) {
    return Payload::copy_of(bytes);
  }
  auto kept = std::make_shared<zmq::message_t>(std::move(message));
  return {{static_cast<const std::byte*>(kept->data()), kept->size()}, kept};
}

void set_common_options(zmq::socket_t& socket, const MailboxOptions& options) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const auto timeout = static_cast<int>(std::clamp<std::int64_t>(
      duration_cast<milliseconds>(options.timeout).count(), 10, INT_MAX / 4));
  socket.set(zmq::sockopt::ipv6, true);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::sndhwm, kHighWaterMark);
  socket.set(zmq::sockopt::rcvhwm, kHighWaterMark);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(kMaxPayloadBytes));
  socket.set(zmq::sockopt::handshake_ivl, timeout);
  socket.set(zmq::sockopt::heartbeat_ivl, std::max(1, timeout / 3));
  socket.set(zmq::sockopt::heartbeat_timeout, timeout);
}

void send_frame(zmq::socket_t& socket, zmq::message_t&& frame, bool more) {
  // Once the first frame of a message is taken, so are the others.
  static_cast<void>(socket.send(frame, (more ? zmq::send_flags::sndmore : zmq::send_flags::none) |
                                           zmq::send_flags::dontwait));
}

void send_body(zmq::socket_t& socket, const Payload& payload) {
  if (!payload.empty()) {
    send_frame(socket, to_message(payload), false);
  }
}

zmq::message_t header_frame(const Header& header) {
  zmq::message_t frame(kHeaderBytes);
  encode(header,
         std::span<std::byte, kHeaderBytes>(static_cast<std::byte*>(frame.data()), kHeaderBytes));
  return frame;
}

/// Reads the rest of a message of which `more` frames follow; at most two are kept.
void receive_body(zmq::socket_t& socket, bool more, Incoming& incoming) {
  std::array<zmq::message_t, 2> frames;
  std::size_t count = 0;
  while (more) {
    zmq::message_t frame;
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) {
      break;
    }
    more = frame.more();
    if (count < frames.size()) {
      frames[count] = std::move(frame);
    }
    ++count;
  }
  try {
    if (count < 1 || count > frames.size()) {
      throw WireError(fmt::format("a message of {} frames", count));
    }
    incoming.header = decode({static_cast<const std::byte*>(frames[0].data()), frames[0].size()},
                             frames[1].size());
    incoming.payload = to_payload(std::move(frames[1]));
  } catch (const WireError& error) {
    incoming.problem = error.what();
  }
}

std::string machine_name() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const ssize_t length = readlink("/proc/self/ns/net", space.data(), space.size() - 1);
  return boot + "/" +
         std::string(space.data(), static_cast<std::size_t>(std::max<ssize_t>(0, length)));
}

std::string tcp_wildcard(const std::string& host) {
  const bool bare_v6 = host.find(':') != std::string::npos && host.front() != '[';
  return bare_v6 ? fmt::format("tcp://[{}]:*", host) : fmt::format("tcp://{}:*", host);
}

}  // namespace

std::string to_text(const ServerEndpoints& endpoints) {
  return endpoints.tcp + '\n' + endpoints.ipc + '\n' + endpoints.machine;
}

ServerEndpoints parse_endpoints(const std::string& text) {
  const std::size_t first = text.find('\n');
  const std::size_t second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second == std::string::npos) {
    throw Error("a server announced no endpoints");
  }
  return {text.substr(0, first), text.substr(first + 1, second - first - 1),
          text.substr(second + 1)};
}

std::string choose_endpoint(const ServerEndpoints& endpoints) {
  const bool local = !endpoints.ipc.empty() && endpoints.machine == machine_name();
  if (!local && endpoints.tcp.empty()) {
    throw ConfigError(
        "ps.transport=ipc reaches servers of this machine only, and one runs elsewhere: use auto "
        "or tcp");
  }
  return local ? endpoints.ipc : endpoints.tcp;
}

Wakeup::Wakeup() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_.get() < 0) {
    throw Error(fmt::format("eventfd: {}", std::strerror(errno)));
  }
}

void Wakeup::signal() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(fd_.get(), &one, sizeof one));
}

void Wakeup::clear() noexcept {
  std::uint64_t count = 0;
  static_cast<void>(!read(fd_.get(), &count, sizeof count));
}

void wait_readable(std::span<const int> fds, std::int64_t until_ns) {
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  static_cast<void>(slack_set);
  const std::int64_t now = now_ns();
  const std::int64_t most = std::chrono::nanoseconds(kAbortPollInterval).count();
  const std::int64_t wait = std::clamp<std::int64_t>(until_ns - now, 0, most);
  std::vector<pollfd> polled;
  polled.reserve(fds.size());
  for (const int fd : fds) {
    polled.push_back({fd, POLLIN, 0});
  }
  const timespec timeout{0, static_cast<long>(wait)};
  static_cast<void>(ppoll(polled.data(), polled.size(), &timeout, nullptr));
}

ServerMailbox::ServerMailbox(const MailboxOptions& options)
    : context_(1), socket_(context_, zmq::socket_type::router) {
  set_common_options(socket_, options);
  socket_.set(zmq::sockopt::router_mandatory, true);
  endpoints_.machine = machine_name();
  std::string endpoint;
  try {
    if (options.transport != "ipc") {
      endpoint = tcp_wildcard(options.host);
      socket_.bind(endpoint);
      endpoints_.tcp = socket_.get(zmq::sockopt::last_endpoint);
    }
    if (options.transport != "tcp") {
      std::random_device random;
      endpoint = fmt::format("ipc://@paceline-ps-{}-{:08x}{:08x}", getpid(), random(), random());
      socket_.bind(endpoint);
      endpoints_.ipc = endpoint;
    }
  } catch (const zmq::error_t& error) {
    throw ConfigError(fmt::format("comm.host: a parameter server cannot listen on {}: {}", endpoint,
                                  error.what()));
  }
}

ServerMailbox::~ServerMailbox() = default;

std::optional<Incoming> ServerMailbox::receive() {
  zmq::message_t route;
  if (!socket_.recv(route, zmq::recv_flags::dontwait)) {
    return std::nullopt;
  }
  Incoming incoming;
  incoming.route = route.to_string();
  receive_body(socket_, route.more(), incoming);
  return incoming;
}

ServerMailbox::Sent ServerMailbox::send(const std::string& route, const Header& header,
                                        const Payload& payload) {
  try {
    zmq::message_t frame(route.data(), route.size());
    if (!socket_.send(frame, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
      return Sent::full;
    }
  } catch (const zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH) {
      return Sent::gone;
    }
    throw;
  }
  send_frame(socket_, header_frame(header), !payload.empty());
  send_body(socket_, payload);
  return Sent::yes;
}

int ServerMailbox::fd() const {
  return socket_.get(zmq::sockopt::fd);
}

void ServerMailbox::set_linger(Nanoseconds linger) {
  socket_.set(zmq::sockopt::linger, static_cast<int>(linger.count() / 1'000'000));
}

WorkerMailbox::WorkerMailbox(const MailboxOptions& options,
                             const std::vector<std::string>& endpoints)
    : context_(1) {
  for (const std::string& endpoint : endpoints) {
    zmq::socket_t socket(context_, zmq::socket_type::dealer);
    set_common_options(socket, options);
    socket.set(zmq::sockopt::immediate, true);
    try {
      socket.connect(endpoint);
    } catch (const zmq::error_t& error) {
      throw Error(
          fmt::format("cannot connect to the parameter server at {}: {}", endpoint, error.what()));
    }
    fds_.push_back(socket.get(zmq::sockopt::fd));
    sockets_.push_back(std::move(socket));
  }
}

WorkerMailbox::~WorkerMailbox() = default;

std::optional<Incoming> WorkerMailbox::receive(int server) {
  zmq::socket_t& socket = sockets_[static_cast<std::size_t>(server)];
  zmq::message_t first;
  if (!socket.recv(first, zmq::recv_flags::dontwait)) {
    return std::nullopt;
  }
  Incoming incoming;
  zmq::message_t payload;
  const bool more = first.more();
  if (more && !socket.recv(payload, zmq::recv_flags::dontwait)) {
    incoming.problem = "a message without its last frame";
    return incoming;
  }
  try {
    incoming.header =
        decode({static_cast<const std::byte*>(first.data()), first.size()}, payload.size());
    incoming.payload = to_payload(std::move(payload));
  } catch (const WireError& error) {
    incoming.problem = error.what();
  }
  return incoming;
}

bool WorkerMailbox::send(int server, const Header& header, const Payload& payload) {
  zmq::socket_t& socket = sockets_[static_cast<std::size_t>(server)];
  zmq::message_t frame = header_frame(header);
  const auto flags = payload.empty() ? zmq::send_flags::none : zmq::send_flags::sndmore;
  if (!socket.send(frame, flags | zmq::send_flags::dontwait)) {
    return false;
  }
  send_body(socket, payload);
  return true;
}

void WorkerMailbox::set_linger(Nanoseconds linger) {
  for (zmq::socket_t& socket : sockets_) {
    socket.set(zmq::sockopt::linger, static_cast<int>(linger.count() / 1'000'000));
  }
}

void keep_message_memory() noexcept {
  constexpr int kKept = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, kKept);
}

}  // namespace paceline
