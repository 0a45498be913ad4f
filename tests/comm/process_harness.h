// SPDX-License-Identifier: Apache-2.0
// Runs one function per rank, each rank a forked process of its own.
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/comm/communicator.h"
#include "common/comm/file_descriptor.h"
#include "tests/comm/transport_harness.h"

namespace paceline {

/// A Communicator over one Unix stream socket per pair of ranks.
class SocketCommunicator final : public Communicator {
 public:
  SocketCommunicator(int rank, std::vector<FileDescriptor> sockets, AbortToken& abort)
      : rank_(rank), sockets_(std::move(sockets)), abort_(abort) {}
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return static_cast<int>(sockets_.size()); }
  [[nodiscard]] std::vector<std::string> allgather(std::string blob) override {
    const std::uint64_t bytes = blob.size();
    std::vector<std::string> all(sockets_.size());
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_) {
        move_all(peer, &bytes, nullptr, sizeof(bytes));
        move_all(peer, blob.data(), nullptr, blob.size());
      }
    }
    for (int peer = 0; peer < size(); ++peer) {
      std::string& theirs = all[static_cast<std::size_t>(peer)];
      if (peer == rank_) {
        theirs = blob;
        continue;
      }
      std::uint64_t length = 0;
      move_all(peer, nullptr, &length, sizeof(length));
      theirs.resize(length);
      move_all(peer, nullptr, theirs.data(), theirs.size());
    }
    return all;
  }

 private:
  void move_all(int peer, const void* out, void* in, std::size_t bytes) {
    const int fd = sockets_[static_cast<std::size_t>(peer)].get();
    const Deadline deadline = Deadline::after(kTestTimeout);
    for (std::size_t moved = 0; moved < bytes;) {
      const ssize_t now =
          out != nullptr ? ::send(fd, static_cast<const char*>(out) + moved, bytes - moved,
                                  MSG_NOSIGNAL | MSG_DONTWAIT)
                         : ::recv(fd, static_cast<char*>(in) + moved, bytes - moved, MSG_DONTWAIT);
      if (now > 0) {
        moved += static_cast<std::size_t>(now);
        continue;
      }
      if (now == 0 || (errno != EAGAIN && errno != EINTR)) {
        throw PeerLost(fmt::format("rank {} ended", peer));
      }
      abort_.check();
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("rank {} is missing", peer));
      }
      pollfd wanted{fd, static_cast<short>(out != nullptr ? POLLOUT : POLLIN), 0};
      poll(&wanted, 1, 20);
    }
  }

  int rank_;
  std::vector<FileDescriptor> sockets_;
  AbortToken& abort_;
};

/// How a forked rank ended.
struct ProcessResult {
  int status = -1;      ///< exit status, -1 when a signal ended it
  int signal = 0;       ///< that signal
  std::string message;  ///< what it threw
};

/// Forks `world` processes that run `body`. A rank that throws exits with 1, else with 0. Waits for
/// all; kills what still runs after three times kTestTimeout.
inline std::vector<ProcessResult> fork_ranks(
    int world, const std::function<void(Communicator&, AbortToken&)>& body) {
  const auto count = static_cast<std::size_t>(world);
  std::vector<std::vector<FileDescriptor>> ends(count);
  for (auto& row : ends) {
    row.resize(count);
  }
  for (std::size_t a = 0; a < count; ++a) {
    for (std::size_t b = a + 1; b < count; ++b) {
      std::array<int, 2> pair{};
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
        throw Error("socketpair failed");
      }
      ends[a][b] = FileDescriptor(pair[0]);
      ends[b][a] = FileDescriptor(pair[1]);
    }
  }
  std::fflush(nullptr);
  std::vector<pid_t> children;
  std::vector<FileDescriptor> reports;
  for (std::size_t rank = 0; rank < count; ++rank) {
    std::array<int, 2> report{};
    if (pipe(report.data()) != 0) {
      throw Error("pipe failed");
    }
    const pid_t child = fork();
    if (child == 0) {
      ::close(report[0]);
      std::vector<FileDescriptor> own = std::move(ends[rank]);
      ends.clear();
      int status = 0;
      try {
        AbortToken abort;
        SocketCommunicator communicator(static_cast<int>(rank), std::move(own), abort);
        body(communicator, abort);
      } catch (const std::exception& error) {
        status = 1;
        const std::string text = error.what();
        static_cast<void>(!::write(report[1], text.data(), text.size()));
      }
      std::fflush(nullptr);
      _exit(status);
    }
    ::close(report[1]);
    children.push_back(child);
    reports.emplace_back(report[0]);
  }
  ends.clear();
  std::vector<ProcessResult> results(count);
  const Deadline deadline = Deadline::after(3 * kTestTimeout);
  for (std::size_t rank = 0; rank < count; ++rank) {
    int raw = 0;
    while (waitpid(children[rank], &raw, WNOHANG) == 0) {
      if (deadline.passed()) {
        kill(children[rank], SIGKILL);
      }
      sleep_until_ns(now_ns() + 1'000'000);
    }
    results[rank].status = WIFEXITED(raw) ? WEXITSTATUS(raw) : -1;
    results[rank].signal = WIFSIGNALED(raw) ? WTERMSIG(raw) : 0;
    std::array<char, 512> text{};
    const ssize_t bytes = ::read(reports[rank].get(), text.data(), text.size());
    results[rank].message.assign(text.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  }
  return results;
}

}  // namespace paceline
