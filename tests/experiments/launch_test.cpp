// SPDX-License-Identifier: Apache-2.0
// Real processes under the launcher: whatever ends one of them, all are gone within the timeout and
// one line names the cause.
#include "experiments/launch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kTimeout = 2s;
// A sanitizer's start and a busy machine delay all; the bound shows that nothing waits for more
// than one timeout.
constexpr std::chrono::milliseconds kSlack = 1s;

struct Scenario {
  int world = 3;
  int servers = 1;
  std::string kill;
  std::string stop;
  int scripted = -1;   ///< member that follows the script
  std::string script;  ///< see launch_member.cpp
  std::string lie;     ///< nonce given to the scripted member instead of the job's
};

LaunchPlan plan_of(const Scenario& scenario) {
  LaunchPlan plan;
  plan.spec.world = scenario.world;
  plan.spec.servers = scenario.servers;
  plan.spec.timeout = kTimeout;
  plan.spec.config_digest = "launch-test";
  plan.command = [scenario](const MemberAddress& address) {
    const bool scripted = address.member == scenario.scripted;
    ProcessOptions options;
    options.program = PACELINE_LAUNCH_MEMBER;
    options.arguments = {
        std::to_string(address.member),
        address.host,
        std::to_string(address.port),
        scripted && !scenario.lie.empty() ? scenario.lie : std::to_string(address.nonce),
        std::to_string(scenario.world),
        std::to_string(scenario.servers),
        std::to_string(kTimeout.count()),
        scenario.kill,
        scenario.stop,
        scripted ? scenario.script : "none"};
    return options;
  };
  return plan;
}

/// No child of this process is left, not even as a zombie.
void expect_no_children() {
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

struct Timed {
  JobResult result;
  std::chrono::milliseconds took;
};
Timed run(const Scenario& scenario) {
  const std::int64_t start = now_ns();
  Timed timed{launch(plan_of(scenario)), {}};
  timed.took = std::chrono::duration_cast<std::chrono::milliseconds>(Nanoseconds(now_ns() - start));
  expect_no_children();
  EXPECT_LT(timed.took, kTimeout + kSlack);
  EXPECT_EQ(timed.result.error.find('\n'), std::string::npos);
  return timed;
}

TEST(Launch, AJobThatSucceeds) {
  for (const int world : {1, 4}) {
    Scenario scenario;
    scenario.world = world;
    const Timed timed = run(scenario);
    EXPECT_EQ(timed.result.exit_status, 0);
    EXPECT_EQ(timed.result.error, "");
    ASSERT_EQ(timed.result.members.size(), static_cast<std::size_t>(world + 1));
    for (const ExitStatus& status : timed.result.members) {
      EXPECT_TRUE(status.success()) << status.text();
    }
  }
}

class LaunchKilled : public testing::TestWithParam<std::string> {};

TEST_P(LaunchKilled, NamesTheKilledMember) {
  Scenario scenario;
  scenario.kill = "1@" + GetParam();
  const Timed timed = run(scenario);
  EXPECT_EQ(timed.result.exit_status, 1);
  EXPECT_EQ(timed.result.error, "rank 1 was killed by signal 9 (SIGKILL)");
}

TEST_P(LaunchKilled, NamesTheKilledServer) {
  Scenario scenario;
  scenario.kill = "3@" + GetParam();
  const Timed timed = run(scenario);
  EXPECT_EQ(timed.result.exit_status, 1);
  EXPECT_EQ(timed.result.error, "server 0 was killed by signal 9 (SIGKILL)");
}

TEST_P(LaunchKilled, NamesTheStoppedMember) {
  Scenario scenario;
  scenario.stop = "2@" + GetParam();
  const Timed timed = run(scenario);
  EXPECT_EQ(timed.result.exit_status, 1);
  EXPECT_EQ(timed.result.error.rfind("rank 2 ", 0), 0U) << timed.result.error;
  EXPECT_NE(timed.result.error.find("for 1.2 s"), std::string::npos) << timed.result.error;
  EXPECT_TRUE(timed.result.members[2].signalled);
  for (const std::size_t survivor : {0U, 1U, 3U}) {
    EXPECT_EQ(timed.result.members[survivor].text(), "exited with status 1");
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, LaunchKilled,
                         testing::Values("start", "rendezvous", "forward:0", "forward:7", "last"),
                         [](const auto& value) {
                           std::string name = value.param;
                           std::erase(name, ':');
                           return name;
                         });

TEST(Launch, AMembersOwnReasonIsTheError) {
  Scenario scenario;
  scenario.scripted = 2;
  scenario.script = "throw";
  const Timed timed = run(scenario);
  EXPECT_EQ(timed.result.exit_status, 1);
  EXPECT_EQ(timed.result.error, "rank 2 failed: the loss is nan at step 10");
}

TEST(Launch, ABadConfigurationExitsWithTwo) {
  Scenario scenario;
  scenario.scripted = 0;
  scenario.script = "config";
  const Timed timed = run(scenario);
  EXPECT_EQ(timed.result.exit_status, 2);
  EXPECT_EQ(timed.result.error, "rank 0 failed: no such file");
}

TEST(Launch, ACrashIsNamed) {
  Scenario scenario;
  scenario.scripted = 3;
  scenario.script = "crash";
  EXPECT_EQ(run(scenario).result.error, "server 0 was killed by signal 6 (SIGABRT)");
}

TEST(Launch, AnExitWithoutAWordIsALoss) {
  Scenario scenario;
  scenario.scripted = 1;
  for (const std::string script : {"exit", "leave"}) {
    scenario.script = script;
    const Timed timed = run(scenario);
    EXPECT_EQ(timed.result.exit_status, 1);
    EXPECT_EQ(timed.result.error, "rank 1 lost: connection closed");
  }
}

TEST(Launch, AMemberThatOnlyBlamesAnotherIsNamedWhenTheOtherLives) {
  Scenario scenario;
  scenario.scripted = 0;
  scenario.script = "blame";
  EXPECT_EQ(run(scenario).result.error, "rank 0 failed: rank 1 closed its connection");
}

TEST(Launch, AMemberThatHangsIsKilled) {
  Scenario scenario;
  scenario.kill = "1@forward:12";
  scenario.scripted = 0;
  scenario.script = "deaf";
  const Timed timed = run(scenario);
  // Rank 0 never comes to step 11, so rank 1 does not come to step 12: the collective times out.
  EXPECT_EQ(timed.result.error, "rank 0 did not reach the collective within 2.0 s");
  EXPECT_TRUE(timed.result.members[0].signalled);
}

TEST(Launch, AForeignNonceIsRefused) {
  Scenario scenario;
  scenario.scripted = 1;
  scenario.lie = "12345";
  const Timed timed = run(scenario);
  EXPECT_EQ(timed.result.exit_status, 1);
  EXPECT_EQ(timed.result.error, "rank 1 exited with status 1");
}

TEST(Launch, AProgramThatCannotStartLeavesNothing) {
  LaunchPlan plan = plan_of({});
  const auto command = plan.command;
  plan.command = [command](const MemberAddress& address) {
    ProcessOptions options = command(address);
    if (address.member == 2) {
      options.program = "/no/such/program";
    }
    return options;
  };
  EXPECT_THROW(static_cast<void>(launch(plan)), Error);
  expect_no_children();
}

TEST(Launch, APortInUseIsAConfigError) {
  JobSpec spec;
  const JobHub other(spec, "127.0.0.1", 0);
  LaunchPlan plan = plan_of({});
  plan.port = other.port();
  EXPECT_THROW(static_cast<void>(launch(plan)), ConfigError);
  expect_no_children();
}

class LaunchInterrupted : public testing::TestWithParam<std::string> {};

TEST_P(LaunchInterrupted, StopsAllWithinTwoSeconds) {
  Scenario scenario;
  scenario.scripted = 1;
  scenario.script = GetParam();
  if (GetParam() == "stopped") {
    scenario.stop = "1@forward:5";
  }
  std::thread user([] {
    sigset_t set;
    sigfillset(&set);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::this_thread::sleep_for(400ms);
    kill(getpid(), SIGINT);
  });
  // This thread must not die of a signal that comes before launch() blocks it.
  sigset_t interrupt;
  sigset_t before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &before);
  const std::int64_t start = now_ns();
  const JobResult result = launch(plan_of(scenario));
  user.join();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  expect_no_children();
  EXPECT_EQ(result.exit_status, 130);
  EXPECT_EQ(result.signal, SIGINT);
  EXPECT_EQ(result.error, "interrupted by SIGINT");
  EXPECT_LT(Nanoseconds(now_ns() - start), 400ms + 2s);
}

INSTANTIATE_TEST_SUITE_P(Members, LaunchInterrupted, testing::Values("deaf", "stopped"),
                         [](const auto& value) { return value.param; });

TEST(Launch, KilledLauncherLeavesNothing) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    Scenario scenario;
    scenario.scripted = 1;
    scenario.script = "deaf";
    LaunchPlan plan = plan_of(scenario);
    const auto command = plan.command;
    plan.command = [&, command](const MemberAddress& address) {
      ProcessOptions options = command(address);
      // The write end of the pipe stays open as long as a member lives: through its output.
      dup2(ends[1], STDOUT_FILENO);
      return options;
    };
    static_cast<void>(launch(plan));
    _exit(0);
  }
  close(ends[1]);
  std::this_thread::sleep_for(500ms);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);  // end of file: nobody holds the other end
  close(ends[0]);
}

}  // namespace
}  // namespace paceline
