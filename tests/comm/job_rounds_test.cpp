// SPDX-License-Identifier: Apache-2.0
// The collectives as the hub counts them: two ranks and a server.
#include "common/comm/job_rounds.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr JobGroup kWorkers = JobGroup::workers;
constexpr JobGroup kEveryone = JobGroup::everyone;

TEST(JobRounds, TheLastPartGivesAllByMemberAndBeginsTheNextRound) {
  JobRounds rounds(2, 3);
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    EXPECT_FALSE(rounds.contribute(2, {kEveryone, sequence, "server"}));
    EXPECT_FALSE(rounds.contribute(0, {kEveryone, sequence, "zero"}));
    const auto result = rounds.contribute(1, {kEveryone, sequence, ""});
    ASSERT_TRUE(result);
    EXPECT_EQ(result->sequence, sequence);
    EXPECT_EQ(result->blobs, (std::vector<std::string>{"zero", "", "server"}));
  }
  EXPECT_EQ(rounds.size(kWorkers), 2U);
  EXPECT_EQ(rounds.size(kEveryone), 3U);
}

TEST(JobRounds, WhoeverIsElsewhereIsRefused) {
  JobRounds rounds(2, 3);
  EXPECT_EQ(rounds.refusal(2, {kWorkers, 1, ""}), "called a collective of the ranks");
  EXPECT_EQ(rounds.refusal(1, {kWorkers, 2, ""}), "is at collective 2, the others are at 1");
  EXPECT_EQ(rounds.refusal(1, {kWorkers, 1, ""}), "");
  static_cast<void>(rounds.contribute(1, {kWorkers, 1, ""}));
  EXPECT_EQ(rounds.refusal(1, {kWorkers, 1, ""}), "is at collective 1, the others are at 1");
  EXPECT_EQ(rounds.refusal(1, {kEveryone, 1, ""}), "") << "the groups know nothing of each other";
}

TEST(JobRounds, KnowsWhomAnOpenRoundAwaitsAndForHowLong) {
  JobRounds rounds(2, 3);
  EXPECT_TRUE(rounds.overdue(10s, 5s).empty()) << "nobody waits";
  EXPECT_FALSE(rounds.awaits(1));
  static_cast<void>(rounds.contribute(0, {kWorkers, 1, ""}));
  EXPECT_TRUE(rounds.awaits(1));
  EXPECT_FALSE(rounds.awaits(0));
  EXPECT_FALSE(rounds.awaits(2)) << "no rank";
  EXPECT_TRUE(rounds.overdue(3s, 5s).empty());
  EXPECT_EQ(rounds.overdue(2s, 5s), std::vector<int>{1});
  static_cast<void>(rounds.contribute(1, {kWorkers, 1, ""}));
  static_cast<void>(rounds.contribute(1, {kEveryone, 1, ""}));
  EXPECT_TRUE(rounds.overdue(4s, 5s).empty()) << "each round has a clock of its own";
  EXPECT_EQ(rounds.overdue(1s, 5s), (std::vector<int>{0, 2}));
}

}  // namespace
}  // namespace paceline
