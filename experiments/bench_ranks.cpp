// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/comm/job.h"
#include "common/comm/pipe.h"

namespace paceline {

namespace {

constexpr const char* kLoopback = "127.0.0.1";

JobSpec job_spec(int world, Nanoseconds timeout) {
  JobSpec spec;
  spec.world = world;
  spec.nonce = static_cast<std::uint64_t>(now_ns());
  spec.config_digest = "bench";
  spec.timeout = timeout;
  return spec;
}

/// Through `ports` children learn the hub's port: it has threads, so they are forked before.
int run_child(const JobSpec& spec, int rank, const Pipe& ports, const RankBody& body) {
  std::uint16_t port = 0;
  if (::read(ports.read.get(), &port, sizeof(port)) != sizeof(port)) {
    return 1;
  }
  AbortToken abort;
  try {
    JobMember member(spec, rank, kLoopback, port, abort);
    try {
      body(*member.workers(), abort);
    } catch (const std::exception& error) {
      member.fail(error.what());
      throw;
    }
  } catch (const std::exception& error) {
    if (rank == 0) {
      fmt::print(stderr, "paceline: {}\n", error.what());
    }
    return 1;
  }
  std::fflush(stdout);
  return 0;
}

/// Child processes; kills and reaps what is left.
class Children {
 public:
  ~Children() {
    for (const pid_t child : running_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  void add(pid_t child) { running_.push_back(child); }

  /// Reaps all, telling `on_failure(text)` about each that failed. True if none did. From the first
  /// failure on it waits for `grace` at most; who is left is for the destructor.
  template <typename OnFailure>
  bool reap(Nanoseconds grace, OnFailure on_failure) {
    bool good = true;
    Deadline deadline = Deadline::after(grace);
    while (!running_.empty()) {
      int status = 0;
      const pid_t child = waitpid(-1, &status, good ? 0 : WNOHANG);
      if (child < 0 && errno == EINTR) {
        continue;
      }
      if (child == 0) {
        if (deadline.passed()) {
          return false;
        }
        std::this_thread::sleep_for(kAbortPollInterval);
        continue;
      }
      const auto at = std::find(running_.begin(), running_.end(), child);
      if (at == running_.end()) {
        return false;
      }
      running_.erase(at);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        deadline = good ? Deadline::after(grace) : deadline;
        good = false;
        on_failure(WIFSIGNALED(status)
                       ? fmt::format("a process was ended by signal {}", WTERMSIG(status))
                       : fmt::format("a process exited with status {}", WEXITSTATUS(status)));
      }
    }
    return good;
  }

 private:
  std::vector<pid_t> running_;
};

}  // namespace

int run_thread_ranks(int world, Nanoseconds timeout, const RankBody& body) {
  AbortToken abort;
  auto workers = make_thread_communicators(world, timeout.count(), abort);
  std::mutex mutex;
  std::string failure;
  {
    std::vector<std::jthread> threads;
    for (auto& worker : workers) {
      threads.emplace_back([&, own = std::move(worker)] {
        try {
          body(*own, abort);
        } catch (const std::exception& error) {
          const std::scoped_lock lock(mutex);
          failure = failure.empty() ? error.what() : failure;
          abort.request(std::current_exception());
        }
      });
    }
  }
  if (!failure.empty()) {
    fmt::print(stderr, "paceline: {}\n", failure);
  }
  return failure.empty() ? 0 : 1;
}

int run_process_ranks(int world, Nanoseconds timeout, const RankBody& body) {
  const JobSpec spec = job_spec(world, timeout);
  const Pipe ports = make_pipe("the ranks' port");
  const pid_t parent = getpid();
  std::fflush(nullptr);
  Children children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      throw Error(fmt::format("fork: {}", std::strerror(errno)));
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(getppid() == parent ? run_child(spec, rank, ports, body) : 1);
    }
    children.add(child);
  }
  JobHub hub(spec, kLoopback, 0);
  const std::uint16_t port = hub.port();
  for (int rank = 0; rank < world; ++rank) {
    if (::write(ports.write.get(), &port, sizeof(port)) != sizeof(port)) {
      throw Error(fmt::format("cannot tell the ranks their port: {}", std::strerror(errno)));
    }
  }
  return children.reap(2 * timeout, [&](const std::string& why) { hub.abort(why); }) ? 0 : 1;
}

namespace {

enum class Outcome : char { result = 'r', error = 'e', bad_configuration = 'c' };

/// The outcome and its text.
std::string outcome_of(const std::function<std::string()>& body) {
  const auto with = [](Outcome outcome, std::string_view text) {
    return std::string(1, static_cast<char>(outcome)).append(text);
  };
  try {
    return with(Outcome::result, body());
  } catch (const ConfigError& error) {
    return with(Outcome::bad_configuration, error.what());
  } catch (const std::exception& error) {
    return with(Outcome::error, error.what());
  }
}

void write_all(const FileDescriptor& to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(to.get(), text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
}

/// Until the other side has closed it.
std::string read_all(const FileDescriptor& from, std::string_view what, Nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  std::string text;
  for (;;) {
    pollfd ready{from.get(), POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(kAbortPollInterval.count())) > 0) {
      char bytes[4096];
      const ssize_t count = ::read(from.get(), bytes, sizeof bytes);
      if (count == 0 || (count < 0 && errno != EINTR)) {
        return text;
      }
      text.append(bytes, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    }
    if (deadline.passed()) {
      throw TimeoutError(
          fmt::format("{} took longer than {:.1f} s", what, seconds(timeout.count())));
    }
  }
}

}  // namespace

std::string run_alone(std::string_view what, Nanoseconds timeout,
                      const std::function<std::string()>& body) {
  Pipe answer = make_pipe("a process's answer");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) {
    throw Error(fmt::format("fork: {}", std::strerror(errno)));
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    write_all(answer.write, outcome_of(body));
    _exit(0);
  }
  Children children;
  children.add(child);
  answer.write.reset();
  const std::string text = read_all(answer.read, what, timeout);
  std::string problem = "a process ended without an answer";
  static_cast<void>(children.reap(timeout, [&](const std::string& why) { problem = why; }));
  if (text.empty()) {
    throw Error(problem);
  }
  std::string rest = text.substr(1);
  switch (static_cast<Outcome>(text.front())) {
    case Outcome::result:
      return rest;
    case Outcome::bad_configuration:
      throw ConfigError(rest);
    default:
      throw Error(rest);
  }
}

}  // namespace paceline
