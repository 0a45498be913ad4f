// SPDX-License-Identifier: Apache-2.0
#include "common/comm/tcp_connect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <cstring>
#include <random>
#include <utility>

#include "common/base/error.h"

namespace paceline {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::uint64_t kTcpMagic = 0x3170'6374'656e'6c70;  // "plnetcp1"
constexpr auto kRetry = std::chrono::milliseconds(20);
constexpr auto kHelloTimeout = std::chrono::seconds(5);
// Measured over loopback: 4 MiB halves the rate of large messages (the kernel's copy falls out of
// the caches), 256 KiB stalls the sender.
constexpr int kSocketBufferBytes = 1 << 20;

/// What the connecting side sends; the accepting side answers with the connecting rank's secret.
struct TcpHello {
  std::uint64_t magic;
  std::uint64_t secret;  ///< of the accepting rank
  std::int32_t rank;     ///< of the connecting rank
  std::int32_t connection;
};
static_assert(sizeof(TcpHello) == 24);

std::uint64_t random_secret() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

void tune(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSocketBufferBytes), ignored);
  socket.set_option(asio::socket_base::receive_buffer_size(kSocketBufferBytes), ignored);
}

/// A connection under way, either direction. Kept alive by its pending handlers.
struct Handshake {
  explicit Handshake(asio::io_context& io) : socket(io), timer(io) {}
  tcp::socket socket;
  asio::steady_timer timer;
  TcpHello hello{};
  std::uint64_t answer = 0;
  std::vector<tcp::endpoint> targets;
};

}  // namespace

class TcpConnector::Impl {
 public:
  Impl(int self, const std::string& host) : self_(self), acceptor_(io_) {
    endpoint_.host = host;
    endpoint_.secret = random_secret();
    try {
      const tcp::endpoint address = *tcp::resolver(io_).resolve(host, "0").begin();
      acceptor_.open(address.protocol());
      acceptor_.bind(address);
      acceptor_.listen();
      endpoint_.port = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      throw ConfigError(
          fmt::format("comm.host={}: cannot listen there: {}; allowed is a name or "
                      "address of this machine",
                      host, error.code().message()));
    }
  }

  [[nodiscard]] const TcpEndpoint& own_endpoint() const noexcept { return endpoint_; }

  std::vector<std::vector<FileDescriptor>> connect(const std::vector<int>& peers,
                                                   const std::vector<TcpEndpoint>& endpoints,
                                                   int connections, Nanoseconds timeout,
                                                   const AbortToken& abort) {
    endpoints_ = &endpoints;
    sockets_.resize(endpoints.size());
    for (const int peer : peers) {
      sockets_[static_cast<std::size_t>(peer)].resize(static_cast<std::size_t>(connections));
      for (int connection = 0; peer < self_ && connection < connections; ++connection) {
        start_connect(peer, connection);
      }
    }
    accept_next();
    const Deadline deadline = Deadline::after(timeout);
    while (!missing().empty()) {
      io_.restart();
      io_.run_for(kAbortPollInterval);
      abort.check();
      if (failure_) {
        std::rethrow_exception(failure_);
      }
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("rank {}: no TCP connection with rank {} within {:.1f} s",
                                       self_, fmt::join(missing(), ", "),
                                       seconds(timeout.count())));
      }
    }
    acceptor_.close();
    return std::move(sockets_);
  }

 private:
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < sockets_.size(); ++rank) {
      if (std::any_of(sockets_[rank].begin(), sockets_[rank].end(),
                      [](const FileDescriptor& fd) { return !fd.valid(); })) {
        ranks.push_back(static_cast<int>(rank));
      }
    }
    return ranks;
  }

  void fail(std::exception_ptr reason) {
    if (!failure_) {
      failure_ = std::move(reason);
    }
  }

  void keep(Handshake& handshake, int peer) {
    tune(handshake.socket);
    handshake.timer.cancel();
    handshake.socket.non_blocking(true);
    sockets_[static_cast<std::size_t>(peer)][static_cast<std::size_t>(handshake.hello.connection)] =
        FileDescriptor(handshake.socket.release());
  }

  // --- connecting side ---------------------------------------------------------------------------

  void start_connect(int peer, int connection) {
    const TcpEndpoint& target = (*endpoints_)[static_cast<std::size_t>(peer)];
    auto handshake = std::make_shared<Handshake>(io_);
    handshake->hello = {kTcpMagic, target.secret, self_, connection};
    error_code error;
    for (const auto& entry : tcp::resolver(io_).resolve(target.host, std::to_string(target.port),
                                                        tcp::resolver::numeric_service, error)) {
      handshake->targets.push_back(entry.endpoint());
    }
    if (error) {
      throw ConfigError(fmt::format("comm.host={} of rank {}: cannot resolve it: {}", target.host,
                                    peer, error.message()));
    }
    try_connect(handshake, peer);
  }

  void try_connect(const std::shared_ptr<Handshake>& handshake, int peer) {
    asio::async_connect(
        handshake->socket, handshake->targets,
        [this, handshake, peer](const error_code& error, const tcp::endpoint&) {
          if (error) {  // The listener may be out of reach for a moment: the timeout decides.
            handshake->timer.expires_after(kRetry);
            handshake->timer.async_wait([this, handshake, peer](const error_code& stopped) {
              if (!stopped) {
                try_connect(handshake, peer);
              }
            });
            return;
          }
          send_hello(handshake, peer);
        });
  }

  void send_hello(const std::shared_ptr<Handshake>& handshake, int peer) {
    tune(handshake->socket);
    asio::async_write(handshake->socket, asio::buffer(&handshake->hello, sizeof(TcpHello)),
                      [this, handshake, peer](const error_code& error, std::size_t) {
                        if (error) {
                          refused(peer, error.message());
                          return;
                        }
                        await_answer(handshake, peer);
                      });
  }

  void await_answer(const std::shared_ptr<Handshake>& handshake, int peer) {
    asio::async_read(handshake->socket, asio::buffer(&handshake->answer, sizeof(std::uint64_t)),
                     [this, handshake, peer](const error_code& error, std::size_t) {
                       if (error) {
                         refused(peer, error.message());
                       } else if (handshake->answer != endpoint_.secret) {
                         refused(peer, "it does not belong to this job");
                       } else {
                         keep(*handshake, peer);
                       }
                     });
  }

  void refused(int peer, const std::string& why) {
    const TcpEndpoint& target = (*endpoints_)[static_cast<std::size_t>(peer)];
    fail(std::make_exception_ptr(
        PeerLost(fmt::format("rank {}: rank {} at {}:{} did not accept the TCP connection: {}",
                             self_, peer, target.host, target.port, why))));
  }

  // --- accepting side ----------------------------------------------------------------------------

  void accept_next() {
    auto handshake = std::make_shared<Handshake>(io_);
    acceptor_.async_accept(handshake->socket, [this, handshake](const error_code& error) {
      if (!acceptor_.is_open()) {
        return;
      }
      if (!error) {
        read_hello(handshake);
      }
      accept_next();
    });
  }

  void read_hello(const std::shared_ptr<Handshake>& handshake) {
    handshake->timer.expires_after(kHelloTimeout);
    handshake->timer.async_wait([handshake](const error_code& stopped) {
      if (!stopped) {
        error_code ignored;
        handshake->socket.close(ignored);
      }
    });
    asio::async_read(handshake->socket, asio::buffer(&handshake->hello, sizeof(TcpHello)),
                     [this, handshake](const error_code& error, std::size_t) {
                       if (error || !expected(handshake->hello)) {
                         drop(*handshake);
                       } else {
                         answer_hello(handshake);
                       }
                     });
  }

  [[nodiscard]] bool expected(const TcpHello& hello) const {
    if (hello.magic != kTcpMagic || hello.secret != endpoint_.secret || hello.rank <= self_ ||
        static_cast<std::size_t>(hello.rank) >= sockets_.size() || hello.connection < 0) {
      return false;
    }
    const auto& slots = sockets_[static_cast<std::size_t>(hello.rank)];
    const auto connection = static_cast<std::size_t>(hello.connection);
    return connection < slots.size() && !slots[connection].valid();
  }

  static void drop(Handshake& handshake) {
    error_code ignored;
    handshake.timer.cancel();
    handshake.socket.close(ignored);
  }

  void answer_hello(const std::shared_ptr<Handshake>& handshake) {
    const auto rank = static_cast<std::size_t>(handshake->hello.rank);
    handshake->answer = (*endpoints_)[rank].secret;
    asio::async_write(handshake->socket, asio::buffer(&handshake->answer, sizeof(std::uint64_t)),
                      [this, handshake](const error_code& error, std::size_t) {
                        if (error || !expected(handshake->hello)) {
                          drop(*handshake);
                        } else {
                          keep(*handshake, handshake->hello.rank);
                        }
                      });
  }

  int self_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  TcpEndpoint endpoint_;
  const std::vector<TcpEndpoint>* endpoints_ = nullptr;
  std::vector<std::vector<FileDescriptor>> sockets_;
  std::exception_ptr failure_;
};

TcpConnector::TcpConnector(int self, const std::string& host)
    : impl_(std::make_unique<Impl>(self, host)) {}
TcpConnector::~TcpConnector() = default;

const TcpEndpoint& TcpConnector::own_endpoint() const noexcept {
  return impl_->own_endpoint();
}

std::vector<std::vector<FileDescriptor>> TcpConnector::connect(
    const std::vector<int>& peers, const std::vector<TcpEndpoint>& endpoints, int connections,
    Nanoseconds timeout, const AbortToken& abort) {
  return impl_->connect(peers, endpoints, connections, timeout, abort);
}

}  // namespace paceline
