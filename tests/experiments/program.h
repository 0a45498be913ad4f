// SPDX-License-Identifier: Apache-2.0
// Runs the built program `paceline` as a user would: a child in a session of its own, with a
// temporary folder for its runs and what it prints. Nobody of that session may outlive the test.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/time.h"
#include "experiments/process.h"
#include "tests/support/temporary_folder.h"

namespace paceline::test {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kGiveUp{60};
constexpr std::chrono::milliseconds kLook{5};

inline bool wait_until(const std::function<bool()>& reached, Nanoseconds limit = kGiveUp) {
  const Deadline deadline = Deadline::after(limit);
  while (!reached()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

/// Empty when it cannot be read: a process may end between opening and reading its file in /proc.
inline std::string read_all(const std::filesystem::path& file) {
  const std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

/// What /proc tells of a process.
struct ProcessState {
  char state = 0;  ///< R, S, T (stopped), Z; 0: there is none
  pid_t parent = 0;
  pid_t session = 0;
  [[nodiscard]] bool runs() const { return state != 0 && state != 'Z' && state != 'X'; }
};

inline ProcessState state_of(pid_t pid) {
  const std::string text = read_all(fmt::format("/proc/{}/stat", pid));
  ProcessState state;
  const std::size_t name_end = text.rfind(") ");  // the name may hold any character
  if (name_end != std::string::npos) {
    pid_t group = 0;
    std::istringstream(text.substr(name_end + 2)) >> state.state >> state.parent >> group >>
        state.session;
  }
  return state;
}

inline std::vector<pid_t> processes_of_session(pid_t session) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    const ProcessState state = state_of(pid);
    if (state.runs() && state.session == session) found.push_back(pid);
  }
  return found;
}

struct ProgramOptions {
  std::vector<std::string> arguments;
  std::vector<std::string> environment{};  ///< "NAME=value", in addition to this process's
};

/// One run of the program. Its destructor kills what is left of the session.
class Program {
 public:
  Program(const std::filesystem::path& folder, const ProgramOptions& options)
      : out_(unused(folder, "out")), err_(unused(folder, "err")), start_ns_(now_ns()) {
    pid_ = fork();
    if (pid_ == 0) become(options);
    if (pid_ < 0) throw std::runtime_error("fork failed");
  }
  ~Program() {
    for (const pid_t pid : processes_of_session(pid_)) ::kill(pid, SIGKILL);
    if (!status_) waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  void signal_group(int number) const { ::kill(-pid_, number); }
  [[nodiscard]] std::int64_t start_ns() const { return start_ns_; }

  [[nodiscard]] bool ended() {
    int status = 0;
    if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFSIGNALED(status) ? ExitStatus{true, WTERMSIG(status)}
                                    : ExitStatus{false, WEXITSTATUS(status)};
      end_ns_ = now_ns();
    }
    return status_.has_value();
  }
  /// Waits for its end. The exit status, as a shell would show it.
  int wait() {
    const bool in_time = wait_until([this] { return ended(); });
    EXPECT_TRUE(in_time) << "still runs after " << kGiveUp.count() << " s\n" << err();
    return in_time ? status_->shell_code() : -1;
  }
  [[nodiscard]] std::int64_t end_ns() const { return end_ns_; }
  [[nodiscard]] bool killed() const { return status_ && status_->signalled; }
  /// Nobody of its session runs any more.
  [[nodiscard]] bool nobody_left() const { return processes_of_session(pid_).empty(); }

  [[nodiscard]] std::string out() const { return read_all(out_); }
  [[nodiscard]] std::string err() const { return read_all(err_); }
  /// The lines on standard error that report a mistake, not progress.
  [[nodiscard]] std::vector<std::string> errors() const {
    std::vector<std::string> lines;
    std::istringstream in(err());
    for (std::string line; std::getline(in, line);) {
      const std::string_view prefix = "paceline: ";
      if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
    }
    return lines;
  }

  /// The process that is `member` of the job (workers first, then servers), once there is one.
  [[nodiscard]] std::optional<pid_t> member(int number) const {
    const std::string wanted = fmt::format("--member\n{}\n", number);
    for (const pid_t pid : processes_of_session(pid_)) {
      std::string line = read_all(fmt::format("/proc/{}/cmdline", pid));
      std::ranges::replace(line, '\0', '\n');
      if (line.find(wanted) != std::string::npos) return pid;
    }
    return std::nullopt;
  }
  pid_t wait_for_member(int number) {
    std::optional<pid_t> found;
    wait_until([&] { return (found = member(number)).has_value() || ended(); });
    return found.value_or(-1);
  }
  /// Waits until rank 0 reports the accuracy after some steps: all are in the midst of training.
  [[nodiscard]] bool wait_for_training() {
    return wait_until([this] { return has_trained() || ended(); }) && has_trained();
  }

 private:
  [[nodiscard]] bool has_trained() const {
    return err().find("test accuracy") != std::string::npos;
  }

  static std::filesystem::path unused(const std::filesystem::path& folder, const char* name) {
    for (int number = 0;; ++number) {
      std::filesystem::path path = folder / fmt::format("{}.{}", name, number);
      if (!std::filesystem::exists(path)) {
        std::ofstream(path).flush();
        return path;
      }
    }
  }

  [[noreturn]] void become(const ProgramOptions& options) const {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(open(out_.c_str(), O_WRONLY | O_APPEND), STDOUT_FILENO);
    dup2(open(err_.c_str(), O_WRONLY | O_APPEND), STDERR_FILENO);
    for (const std::string& variable : options.environment) {
      putenv(const_cast<char*>(variable.c_str()));
    }
    std::vector<std::string> texts = options.arguments;
    texts.insert(texts.begin(), PACELINE_PROGRAM);
    std::vector<char*> arguments;
    for (std::string& text : texts) arguments.push_back(text.data());
    arguments.push_back(nullptr);
    execv(PACELINE_PROGRAM, arguments.data());
    _exit(127);
  }

  std::filesystem::path out_;
  std::filesystem::path err_;
  std::int64_t start_ns_;
  std::int64_t end_ns_ = 0;
  pid_t pid_ = -1;
  std::optional<ExitStatus> status_;
};

/// A folder for runs, and what must hold after every one that went wrong.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() : shared_memory_(names_in("/dev/shm")) {}

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  [[nodiscard]] std::filesystem::path runs() const { return folder() / "runs"; }

  /// A short run on little data, small enough for a sanitizer.
  [[nodiscard]] std::vector<std::string> train(std::vector<std::string> more,
                                               bool quiet = true) const {
    std::vector<std::string> all{"train",
                                 "run.dir=" + runs().string(),
                                 "data.name=synthetic",
                                 "data.train_limit=200",
                                 "data.test_limit=50",
                                 "model=softmax",
                                 "train.batch=8",
                                 "train.samples=320",
                                 "comm.timeout=2s"};
    if (quiet) all.emplace_back("--quiet");
    std::ranges::move(more, std::back_inserter(all));
    return all;
  }

  /// One error line, and nothing left but an unfinished run folder.
  void expect_failed(const Program& program) const {
    EXPECT_EQ(program.errors().size(), 1U) << program.err();
    expect_nothing_left(program);
  }
  void expect_nothing_left(const Program& program) const {
    EXPECT_TRUE(program.nobody_left());
    EXPECT_EQ(finished_runs(), 0);
    EXPECT_EQ(names_in("/dev/shm"), shared_memory_);
  }
  [[nodiscard]] int finished_runs() const {
    int count = 0;
    std::error_code none;
    for (std::filesystem::recursive_directory_iterator entry(runs(), none), end; entry != end;
         entry.increment(none)) {
      count += entry->path().filename() == "DONE" ? 1 : 0;
    }
    return count;
  }

 private:
  static std::set<std::string> names_in(const std::filesystem::path& folder) {
    std::set<std::string> names;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
      const std::string name = entry.path().filename().string();
      if (name.find("paceline") != std::string::npos) names.insert(name);
    }
    return names;
  }

  TemporaryFolder folder_;
  std::set<std::string> shared_memory_;
};

}  // namespace paceline::test
