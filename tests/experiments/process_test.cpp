// SPDX-License-Identifier: Apache-2.0
#include "experiments/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "common/base/abort.h"
#include "common/base/error.h"
#include "experiments/signals.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

ProcessOptions shell(const std::string& script, bool capture = false) {
  ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"-c", script};
  options.capture_output = capture;
  return options;
}

bool exists(pid_t pid) {
  return kill(pid, 0) == 0;
}

/// Everything the child writes until it ends.
std::string output_of(Process& process) {
  std::string text;
  while (!process.wait(5ms)) {
    text += process.take_output();
  }
  return text + process.take_output();
}

TEST(Process, ReportsExitStatusAndSignal) {
  Process good(shell("exit 0"));
  EXPECT_TRUE(good.wait(10s).value().success());
  Process bad(shell("exit 3"));
  EXPECT_EQ(bad.wait(10s).value().text(), "exited with status 3");
  EXPECT_EQ(bad.wait(10s).value().shell_code(), 3);
  Process killed(shell("kill -9 $$"));
  EXPECT_EQ(killed.wait(10s).value().text(), "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(killed.wait(10s).value().shell_code(), 137);
}

TEST(Process, MissingProgramIsAnErrorThatNamesIt) {
  ProcessOptions options;
  options.program = "/no/such/program";
  try {
    const Process process(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot start /no/such/program: No such file or directory");
  }
}

TEST(Process, PassesArgumentsAndEnvironmentAndCapturesOutput) {
  ProcessOptions options = shell(R"(echo "$1|$PACELINE_TEST|$HOME"; echo problem >&2)", true);
  options.arguments.insert(options.arguments.end(), {"sh", "a 'b' c"});
  options.environment = {{"PACELINE_TEST", "x=y"}, {"HOME", "replaced"}};
  Process process(options);
  EXPECT_EQ(output_of(process), "a 'b' c|x=y|replaced\nproblem\n");
}

TEST(Process, LongOutputDoesNotBlock) {
  Process process(
      shell("i=0; while [ $i -lt 3000 ]; do echo 'forty bytes of text are a line of "
            "this file'; i=$((i+1)); done",
            true));
  EXPECT_EQ(output_of(process).size(), 3000U * 44U);
  EXPECT_TRUE(process.wait(10s).value().success());
}

TEST(Process, InheritsNoDescriptors) {
  const FileDescriptor open_here(open("/dev/null", O_RDONLY));
  ASSERT_GE(open_here.get(), 3);
  Process process(shell(
      fmt::format("[ -e /proc/self/fd/{} ] && echo leaked || echo clean", open_here.get()), true));
  EXPECT_EQ(output_of(process), "clean\n");
}

TEST(Process, DestructorLeavesNeitherChildNorZombie) {
  pid_t pid = 0;
  {
    const Process process(shell("trap '' TERM; while :; do sleep 1; done"));
    pid = process.pid();
    EXPECT_TRUE(exists(pid));
  }
  EXPECT_FALSE(exists(pid));
}

TEST(Process, StopEscalates) {
  Process polite(shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", true));
  while (polite.take_output().empty()) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(polite.stop(10s).text(), "exited with status 7");
  Process stubborn(shell("trap '' TERM; echo ready; while :; do sleep 0.05; done", true));
  while (stubborn.take_output().empty()) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(stubborn.stop(100ms).text(), "was killed by signal 9 (SIGKILL)");
}

TEST(Process, StoppedChildIsSeenAndKilled) {
  Process process(shell("kill -STOP $$; echo never"));
  while (!process.stopped()) {
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_FALSE(process.poll());
  EXPECT_EQ(process.stop(10s).text(), "was killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(process.stopped());
}

TEST(Process, ChildDiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const Process child(shell("exec sleep 60"));
    const pid_t pid = child.pid();
    static_cast<void>(!write(ends[1], &pid, sizeof(pid)));
    kill(getpid(), SIGKILL);  // no destructor runs
  }
  pid_t child = 0;
  ASSERT_EQ(read(ends[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  waitpid(parent, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  // The orphan is killed by the kernel; somebody else reaps it, maybe late.
  const auto gone = [&] {
    std::ifstream file(fmt::format("/proc/{}/stat", child));
    std::string text;
    std::getline(file, text);
    const std::size_t name_end = text.rfind(") ");
    return name_end == std::string::npos || text[name_end + 2] == 'Z' || text[name_end + 2] == 'X';
  };
  const Deadline deadline = Deadline::after(10s);
  while (!gone() && !deadline.passed()) {
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_TRUE(gone());
}

TEST(SignalWatcher, TurnsSignalsIntoAnAbort) {
  for (const int signal : {SIGINT, SIGTERM}) {
    AbortToken abort;
    const SignalWatcher watcher(abort);
    EXPECT_FALSE(abort.requested());
    kill(getpid(), signal);
    const Deadline deadline = Deadline::after(10s);
    while (!abort.requested() && !deadline.passed()) {
      std::this_thread::sleep_for(1ms);
    }
    try {
      abort.check();
      FAIL();
    } catch (const Interrupted& interrupted) {
      EXPECT_EQ(interrupted.signal(), signal);
      EXPECT_EQ(std::string(interrupted.what()), "interrupted by " + signal_name(signal));
    }
  }
}

TEST(SignalWatcher, RestoresTheMask) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  {
    AbortToken abort;
    const SignalWatcher watcher(abort);
  }
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
  EXPECT_EQ(sigismember(&after, SIGTERM), 0);
}

}  // namespace
}  // namespace paceline
