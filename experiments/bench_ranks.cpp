// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_ranks.h"

#include <fmt/format.h>
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
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/comm/file_descriptor.h"
#include "common/comm/job.h"

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

/// A pipe through which children learn the hub's port: it has threads, so they are forked before.
struct PortPipe {
  FileDescriptor read;
  FileDescriptor write;
  PortPipe() {
    int ends[2];
    if (pipe(ends) != 0) {
      throw Error(fmt::format("pipe: {}", std::strerror(errno)));
    }
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
  }
};

int run_child(const JobSpec& spec, int rank, const PortPipe& ports, const RankBody& body) {
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

  /// Reaps all, telling `on_failure(text)` about each that failed. True if none did.
  template <typename OnFailure>
  bool reap(OnFailure on_failure) {
    bool good = true;
    while (!running_.empty()) {
      int status = 0;
      const pid_t child = waitpid(-1, &status, 0);
      if (child < 0 && errno == EINTR) {
        continue;
      }
      const auto at = std::find(running_.begin(), running_.end(), child);
      if (at == running_.end()) {
        return false;
      }
      running_.erase(at);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        good = false;
        on_failure(WIFSIGNALED(status)
                       ? fmt::format("a rank was ended by signal {}", WTERMSIG(status))
                       : fmt::format("a rank exited with status {}", WEXITSTATUS(status)));
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
  const PortPipe ports;
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
      throw Error(fmt::format("pipe: {}", std::strerror(errno)));
    }
  }
  return children.reap([&](const std::string& why) { hub.abort(why); }) ? 0 : 1;
}

}  // namespace paceline
