// SPDX-License-Identifier: Apache-2.0
#include "experiments/host_speed.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/base/error.h"
#include "common/base/median.h"
#include "common/base/time.h"

namespace paceline {
namespace {

constexpr std::size_t kWriteBytes = std::size_t{1} << 20;
constexpr std::int64_t kMillisecond = 1'000'000;

/// Owns a socket; blocking calls give up after two seconds.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd_ < 0) throw Error(fmt::format("socket: {}", std::strerror(errno)));
    const timeval limit{2, 0};
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int fd() const noexcept { return fd_; }

  [[nodiscard]] bool send_all(const std::byte* data, std::size_t bytes) const noexcept {
    while (bytes > 0) {
      const ssize_t sent = ::send(fd_, data, bytes, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
    return true;
  }
  [[nodiscard]] bool receive_all(std::byte* data, std::size_t bytes) const noexcept {
    while (bytes > 0) {
      const ssize_t got = ::recv(fd_, data, bytes, 0);
      if (got <= 0) return false;
      data += got;
      bytes -= static_cast<std::size_t>(got);
    }
    return true;
  }

 private:
  int fd_;
};

void check(int result, const char* what) {
  if (result != 0) throw Error(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Two ends of one connection.
std::pair<Socket, Socket> connected_pair(bool ipv6) {
  const int family = ipv6 ? AF_INET6 : AF_INET;
  const Socket listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t length = ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.ss_family = static_cast<sa_family_t>(family);
  if (ipv6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  check(::bind(listener.fd(), generic, length), "bind");
  check(::listen(listener.fd(), 1), "listen");
  check(::getsockname(listener.fd(), generic, &length), "getsockname");
  Socket client(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  check(::connect(client.fd(), generic, length), "connect");
  return {std::move(client), Socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC))};
}

/// The other side: echoes single bytes until a 0, then swallows everything until the end.
void serve(const Socket& socket) {
  std::byte one{1};
  while (socket.receive_all(&one, 1) && one != std::byte{0}) {
    if (!socket.send_all(&one, 1)) return;
  }
  std::vector<std::byte> sink(kWriteBytes);
  while (::recv(socket.fd(), sink.data(), sink.size(), 0) > 0) {
  }
}

double median_half_round_trip(const Socket& socket) {
  std::vector<std::int64_t> times;
  const std::int64_t start = now_ns();
  std::byte one{1};
  for (std::int64_t now = start; now - start < 100 * kMillisecond;) {
    if (!socket.send_all(&one, 1) || !socket.receive_all(&one, 1)) {
      throw Error("the connection fell silent");
    }
    const std::int64_t then = std::exchange(now, now_ns());
    times.push_back(now - then);
  }
  return seconds(median(std::move(times))) / 2.0;
}

double one_way_rate(const Socket& socket) {
  const std::vector<std::byte> block(kWriteBytes, std::byte{1});
  const std::byte end_of_echo{0};
  bool good = socket.send_all(&end_of_echo, 1);
  for (int i = 0; i < 16 && good; ++i) good = socket.send_all(block.data(), block.size());
  const std::int64_t start = now_ns();
  std::int64_t now = start;
  double bytes = 0.0;
  while (good && now - start < 200 * kMillisecond) {
    good = socket.send_all(block.data(), block.size());
    bytes += static_cast<double>(block.size());
    now = now_ns();
  }
  if (!good) throw Error("the connection fell silent");
  return bytes / seconds(now - start);
}

}  // namespace

LoopbackSpeed measure_loopback(bool ipv6) {
  LoopbackSpeed speed;
  try {
    auto [client, server] = connected_pair(ipv6);
    std::jthread other([&socket = server] { serve(socket); });
    try {
      speed.half_round_trip_s = median_half_round_trip(client);
      speed.bytes_per_second = one_way_rate(client);
    } catch (const Error& error) {
      speed.error = error.what();
    }
    ::shutdown(client.fd(), SHUT_RDWR);
    other.join();
  } catch (const Error& error) {
    speed.error = error.what();
  }
  return speed;
}

double measure_memcpy() {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const Buffer from(kBytes);
  const Buffer to(kBytes);
  std::memcpy(to.data(), from.data(), kBytes);
  const std::int64_t start = now_ns();
  std::int64_t now = start;
  double bytes = 0.0;
  while (now - start < 150 * kMillisecond) {
    std::memcpy(to.data(), from.data(), kBytes);
    // The copies have no reader; keep the compiler from leaving them out.
    asm volatile("" : : "r"(to.data()) : "memory");
    bytes += static_cast<double>(kBytes);
    now = now_ns();
  }
  return bytes / seconds(now - start);
}

}  // namespace paceline
