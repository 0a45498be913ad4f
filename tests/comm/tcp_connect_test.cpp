// SPDX-License-Identifier: Apache-2.0
// Strangers on the ports that ranks listen on: they neither take a rank's place nor stop it.
#include "common/comm/tcp_connect.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

/// A stranger's connection to 127.0.0.1:port, with `bytes` sent.
FileDescriptor stranger(std::uint16_t port, const std::string& bytes) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0)
      << std::strerror(errno);
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return socket;
}

struct Pair {
  TcpConnector zero{0, "127.0.0.1"};
  TcpConnector one{1, "127.0.0.1"};
  AbortToken abort;
  [[nodiscard]] std::vector<TcpEndpoint> endpoints() const {
    return {zero.own_endpoint(), one.own_endpoint()};
  }
};

/// Connects both and passes one byte each way over every connection.
void expect_connected(Pair& pair, int connections) {
  std::vector<std::vector<FileDescriptor>> of_one;
  std::string failure;
  std::thread other([&] {
    try {
      of_one = pair.one.connect({0}, pair.endpoints(), connections, 10s, pair.abort);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  });
  std::vector<std::vector<FileDescriptor>> of_zero;
  EXPECT_NO_THROW(of_zero = pair.zero.connect({1}, pair.endpoints(), connections, 10s, pair.abort));
  other.join();
  ASSERT_EQ(failure, "");
  ASSERT_EQ(of_zero.size(), 2U);
  ASSERT_EQ(of_zero[1].size(), static_cast<std::size_t>(connections));
  ASSERT_EQ(of_one[0].size(), static_cast<std::size_t>(connections));
  for (std::size_t c = 0; c < of_zero[1].size(); ++c) {
    const char mark = static_cast<char>('a' + c);
    ASSERT_EQ(::send(of_zero[1][c].get(), &mark, 1, MSG_NOSIGNAL), 1);
    char got = 0;
    for (int tries = 0; ::recv(of_one[0][c].get(), &got, 1, 0) != 1 && tries < 1000; ++tries) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(got, mark) << "connection " << c << " is not the other end's connection " << c;
  }
}

TEST(TcpConnector, ConnectsEachConnectionToItsCounterpart) {
  Pair pair;
  expect_connected(pair, 4);
}

TEST(TcpConnector, DropsStrangersThatSendRubbish) {
  Pair pair;
  std::vector<FileDescriptor> strangers;
  for (const std::uint16_t port : {pair.zero.own_endpoint().port, pair.one.own_endpoint().port}) {
    strangers.push_back(stranger(port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    strangers.push_back(stranger(port, std::string(100'000, '\xff')));
    strangers.push_back(stranger(port, "x"));
    strangers.push_back(stranger(port, ""));
  }
  expect_connected(pair, 2);
}

TEST(TcpConnector, DropsWhoDoesNotKnowTheSecret) {
  Pair pair;
  // magic, secret, rank, connection: as a rank 1 would say hello, but for the secret.
  std::array<char, 24> hello{};
  std::memcpy(hello.data(), "plnetcp1", 8);
  hello[16] = 1;
  const auto impostor =
      stranger(pair.zero.own_endpoint().port, std::string(hello.data(), hello.size()));
  expect_connected(pair, 1);
  char answer = 0;
  for (int tries = 0; tries < 1000; ++tries) {
    const ssize_t got = ::recv(impostor.get(), &answer, 1, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      return;  // closed on it
    }
    ASSERT_NE(got, 1) << "the impostor got an answer";
    std::this_thread::sleep_for(1ms);
  }
  FAIL() << "the impostor's connection stays open";
}

TEST(TcpConnector, NamesWhoIsMissingAtTheTimeout) {
  Pair pair;
  try {
    static_cast<void>(pair.zero.connect({1}, pair.endpoints(), 1, 100ms, pair.abort));
    FAIL() << "rank 1 never called";
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("1"), std::string::npos) << error.what();
  }
}

TEST(TcpConnector, AbortEndsTheWait) {
  Pair pair;
  std::thread other([&] {
    std::this_thread::sleep_for(30ms);
    pair.abort.request(std::make_exception_ptr(Error("enough")));
  });
  try {
    static_cast<void>(pair.zero.connect({1}, pair.endpoints(), 1, 10s, pair.abort));
    ADD_FAILURE() << "rank 1 never called";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "enough");
  }
  other.join();
}

}  // namespace
}  // namespace paceline
