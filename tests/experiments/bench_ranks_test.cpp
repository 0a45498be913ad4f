// SPDX-License-Identifier: Apache-2.0
// What benchmarks run in processes of their own: it comes back, or ends.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "common/base/error.h"
#include "experiments/bench_ranks.h"

namespace paceline {
namespace {

constexpr Nanoseconds kPlenty = std::chrono::seconds(20);

TEST(RunAlone, GivesWhatItsProcessReturnsOrThrows) {
  const pid_t here = getpid();
  EXPECT_NE(run_alone("a test", kPlenty, [] { return std::to_string(getpid()); }),
            std::to_string(here));
  const std::string large(1'000'000, 'x');  // more than a pipe holds
  EXPECT_EQ(run_alone("a test", kPlenty, [&] { return large; }), large);
  EXPECT_EQ(run_alone("a test", kPlenty, [] { return std::string(); }), "");
  const auto thrown = [](auto exception) {
    return [exception]() -> std::string { throw exception; };
  };
  EXPECT_THROW(run_alone("a test", kPlenty, thrown(ConfigError("no GPU"))), ConfigError);
  try {
    run_alone("a test", kPlenty, thrown(TimeoutError("too late")));
    FAIL();
  } catch (const ConfigError&) {
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "too late");
  }
}

TEST(RunAlone, ADeathAndAStandstillAreErrors) {
  try {
    run_alone("a test", kPlenty, []() -> std::string {
      raise(SIGKILL);
      return {};
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a process was ended by signal 9");
  }
  EXPECT_THROW(run_alone("a test", std::chrono::milliseconds(50),
                         []() -> std::string {
                           for (;;) pause();
                         }),
               TimeoutError);
}

TEST(RunProcessRanks, OneThatHeedsNothingIsKilledAfterAnothersFailure) {
  const int status =
      run_process_ranks(2, std::chrono::seconds(1), [](Communicator& workers, AbortToken&) {
        if (workers.rank() == 1) throw Error("rank 1 is out of luck");
        for (;;) pause();
      });
  EXPECT_EQ(status, 1);
}

}  // namespace
}  // namespace paceline
