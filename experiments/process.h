// SPDX-License-Identifier: Apache-2.0
// A child process that cannot outlive its owner.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/comm/file_descriptor.h"

namespace paceline {

struct ProcessOptions {
  std::string program;                             ///< path; empty: this program
  std::vector<std::string> arguments;              ///< without the program's name
  std::map<std::string, std::string> environment;  ///< replaces or adds to this process's
  bool capture_output = false;  ///< standard output and error into one pipe; else inherited
};

/// How a process ended.
struct ExitStatus {
  bool signalled = false;
  int code = 0;  ///< exit status, or the signal's number
  [[nodiscard]] bool success() const noexcept { return !signalled && code == 0; }
  /// "exited with status 3", "was killed by signal 9 (SIGKILL)".
  [[nodiscard]] std::string text() const;
  /// As a shell would report it: 128 + signal.
  [[nodiscard]] int shell_code() const noexcept { return signalled ? 128 + code : code; }
};

/// Used by one thread, which must live as long as the child should: the kernel kills the child when
/// the thread that started it ends (PR_SET_PDEATHSIG). The child gets no descriptor but the
/// standard ones, and default signal handling. It stays in this process's group.
class Process {
 public:
  /// Throws Error naming the program when it cannot be started.
  explicit Process(const ProcessOptions& options);
  /// Kills (SIGKILL) and reaps the child if it still runs.
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Its end, none while it runs. Does not block.
  std::optional<ExitStatus> poll();
  /// Whether it is stopped (SIGSTOP, SIGTSTP) at this moment; SIGTERM would not end it then.
  [[nodiscard]] bool stopped() const;
  /// Waits for its end, at most for `timeout`.
  std::optional<ExitStatus> wait(Nanoseconds timeout);
  /// Sends a signal; nothing when it has ended.
  void signal(int number) noexcept;
  /// SIGTERM, then SIGKILL after `grace` (at once to a stopped one); returns its end.
  ExitStatus stop(Nanoseconds grace);
  /// What it wrote since the last call (capture_output). Does not block.
  [[nodiscard]] std::string take_output();

 private:
  pid_t pid_ = -1;
  std::optional<ExitStatus> status_;
  FileDescriptor output_;
};

}  // namespace paceline
