// SPDX-License-Identifier: Apache-2.0
#include "common/base/fault.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "common/base/error.h"

namespace paceline {
namespace {

/// Wait status of a child that runs `body` and exits with 0; stopped children are then killed.
int child_status(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return status;
}

TEST(Fault, ReadsRankPhaseAndStep) {
  const auto point = parse_fault("fault.kill", "12@backward:34");
  ASSERT_TRUE(point);
  EXPECT_EQ(point->member, 12);
  EXPECT_EQ(point->phase, FaultPhase::backward);
  EXPECT_EQ(point->step, 34);
  EXPECT_EQ(parse_fault("fault.kill", "0@last")->step, std::nullopt);
  EXPECT_EQ(parse_fault("fault.kill", "0@rendezvous")->phase, FaultPhase::rendezvous);
  EXPECT_FALSE(parse_fault("fault.kill", ""));
}

TEST(Fault, RefusesWithKeyValueAndWhatIsAllowed) {
  for (const std::string text :
       {"1", "@forward", "x@forward", "1@", "1@nowhere", "1@forward:", "1@forward:x", "-1@forward",
        "1@forward:-1", "1@forward:1 ", "99999999999@forward"}) {
    try {
      static_cast<void>(parse_fault("fault.stop", text));
      ADD_FAILURE() << text << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()),
                "fault.stop = \"" + text +
                    "\" is not allowed: it must be RANK@PHASE[:STEP] with PHASE one of start, "
                    "rendezvous, forward, backward, commit, last");
    }
  }
  EXPECT_THROW(FaultInjector("4@", "", 0), ConfigError);
}

TEST(Fault, KillsOnlyWhereItIsAskedFor) {
  const auto run = [](int member) {
    FaultInjector faults("1@backward:2", "", member);
    faults.at("start");
    faults.at("forward", 2);
    faults.at("backward", 1);
    faults.at("backward", 2);
  };
  EXPECT_EQ(child_status([&] { run(0); }), 0);
  const int status = child_status([&] { run(1); });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(child_status([] {
              FaultInjector faults("1@backward:2", "", 1);
              faults.at("backward", 1);
              faults.at("backward", 3);
              faults.at("no such phase", 2);
            }),
            0);
}

TEST(Fault, WithoutAStepTheFirstTimeCounts) {
  const int status = child_status([] {
    FaultInjector faults("", "0@forward", 0);
    faults.at("forward", 5);
  });
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(WSTOPSIG(status), SIGSTOP);
}

}  // namespace
}  // namespace paceline
