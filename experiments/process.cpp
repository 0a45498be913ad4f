// SPDX-License-Identifier: Apache-2.0
#include "experiments/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/close_range.h>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/comm/pipe.h"
#include "experiments/signals.h"

extern char** environ;

namespace paceline {

namespace {

constexpr std::chrono::milliseconds kWaitInterval{2};
constexpr int kFirstInherited = 3;

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) {
      result.emplace_back(text);
    }
  }
  for (const auto& [name, value] : changes) {
    result.push_back(fmt::format("{}={}", name, value));
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

/// Everything the child needs between fork and exec, where no memory may be allocated.
struct ChildPlan {
  const char* program;
  char** arguments;
  char** environment;
  int output;  ///< -1: inherit
  int failure;
  pid_t parent;
};

[[noreturn]] void become(const ChildPlan& plan) noexcept {
  const auto give_up = [&plan] {
    const int reason = errno;
    static_cast<void>(!write(plan.failure, &reason, sizeof(reason)));
    _exit(127);
  };
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    give_up();
  }
  if (getppid() != plan.parent) {
    _exit(127);  // the parent ended before the line above
  }
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, &standard, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.output >= 0 &&
      (dup2(plan.output, STDOUT_FILENO) < 0 || dup2(plan.output, STDERR_FILENO) < 0)) {
    give_up();
  }
  if (close_range(kFirstInherited, UINT_MAX, CLOSE_RANGE_CLOEXEC) != 0) {
    give_up();
  }
  execve(plan.program, plan.arguments, plan.environment);
  give_up();
  _exit(127);
}

ExitStatus decode(int status) {
  if (WIFSIGNALED(status)) {
    return {true, WTERMSIG(status)};
  }
  return {false, WEXITSTATUS(status)};
}

}  // namespace

std::string ExitStatus::text() const {
  return signalled ? fmt::format("was killed by signal {} ({})", code, signal_name(code))
                   : fmt::format("exited with status {}", code);
}

Process::Process(const ProcessOptions& options) {
  const std::string program = options.program.empty() ? "/proc/self/exe" : options.program;
  std::vector<std::string> arguments{program};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = merged_environment(options.environment);
  std::vector<char*> argument_pointers = pointers(arguments);
  std::vector<char*> environment_pointers = pointers(environment);
  Pipe failure = make_pipe("starting " + program);
  Pipe output;
  if (options.capture_output) {
    output = make_pipe("the output of " + program);
    fcntl(output.read.get(), F_SETFL, O_NONBLOCK);
  }
  const ChildPlan plan{program.c_str(),    argument_pointers.data(), environment_pointers.data(),
                       output.write.get(), failure.write.get(),      getpid()};
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    become(plan);
  }
  if (pid_ < 0) {
    throw Error(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
  }
  failure.write.reset();
  output_ = std::move(output.read);
  int reason = 0;
  ssize_t count = 0;
  do {
    count = read(failure.read.get(), &reason, sizeof(reason));
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(sizeof(reason))) {
    waitpid(std::exchange(pid_, -1), nullptr, 0);
    throw Error(fmt::format("cannot start {}: {}", program, std::strerror(reason)));
  }
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      status_(other.status_),
      output_(std::move(other.output_)) {}

Process::~Process() {
  if (pid_ > 0 && !status_) {
    ::kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

std::optional<ExitStatus> Process::poll() {
  int status = 0;
  if (!status_ && pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = decode(status);
  }
  return status_;
}

bool Process::stopped() const {
  if (pid_ <= 0 || status_) {
    return false;
  }
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  std::string text;
  std::getline(file, text);
  // The state follows the command's name, which is in parentheses and may hold any character.
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text.size() > name_end + 2 && text[name_end + 2] == 'T';
}

std::optional<ExitStatus> Process::wait(Nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  while (!poll() && !deadline.passed()) {
    sleep_until_ns(now_ns() + Nanoseconds(kWaitInterval).count());
  }
  return status_;
}

void Process::signal(int number) noexcept {
  if (pid_ > 0 && !status_) {
    ::kill(pid_, number);
  }
}

ExitStatus Process::stop(Nanoseconds grace) {
  signal(stopped() ? SIGKILL : SIGTERM);
  if (const auto status = wait(grace)) {
    return *status;
  }
  signal(SIGKILL);
  while (!poll()) {
    wait(std::chrono::seconds(1));
  }
  return *status_;
}

std::string Process::take_output() {
  std::string text;
  std::array<char, 4096> part{};
  while (output_.valid()) {
    const ssize_t count = read(output_.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      break;
    }
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace paceline
