// SPDX-License-Identifier: Apache-2.0
// The search of `paceline tune` with made-up rates.
#include "experiments/tune.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/error.h"

namespace paceline {
namespace {

TuneRates made_up(double rate, double spread) {
  TuneRates rates;
  rates.samples_per_second = rate;
  rates.spread = spread;
  return rates;
}

/// 100, +50 with overlap, +20 with 1 MiB buckets, +5 with bf16; the tree fails, two ranks have no
/// hierarchy.
TuneRates rate_of(const Config& config, double spread) {
  if (config.ring.algorithm == "tree") throw Error("rank 1 was lost");
  double rate = 100.0;
  if (config.sync_options.overlap) rate += 50.0;
  if (config.bucket.size == std::size_t{1} << 20) rate += 20.0;
  if (config.sync_options.wire == "bf16") rate += 5.0;
  return made_up(rate, spread);
}

void check_made_up(const Config& config) {
  if (config.ring.algorithm == "hierarchical") throw ConfigError("ring.algorithm: one node only");
}

TuneResult search_with_spread(double spread) {
  Config user;
  user.world = 2;
  return tune_search(
      user, made_up(100.0, 0.0), tune_stages(user),
      {check_made_up, [spread](const Config& config) { return rate_of(config, spread); }});
}

const TuneTrial& trial_of(const TuneResult& result, const std::string& flag) {
  const auto found = std::ranges::find_if(
      result.trials, [&](const TuneTrial& trial) { return trial.candidate.flags.front() == flag; });
  if (found == result.trials.end()) throw Error("no trial of " + flag);
  return *found;
}

TEST(Tune, KeepsWhatGains) {
  const TuneResult result = search_with_spread(0.0);
  EXPECT_EQ(result.steps.front().rates.samples_per_second, 100.0);
  EXPECT_EQ(result.best().samples_per_second, 175.0);
  EXPECT_EQ(tune_efficiency(result, result.best()), 0.875);
  // Overlap is the user's already; ring.algorithm is the baseline's, as no other was faster.
  EXPECT_EQ(result.flags, (std::vector<std::string>{"bucket.size=1MiB", "sync.wire=bf16",
                                                    "ring.algorithm=ring"}));
}

TEST(Tune, ChangesAddUpToBestLessBaseline) {
  const TuneResult result = search_with_spread(0.0);
  double sum = 0.0;
  for (std::size_t i = 1; i < result.steps.size(); ++i) {
    sum += tune_efficiency(result, result.steps[i].rates) -
           tune_efficiency(result, result.steps[i - 1].rates);
  }
  EXPECT_NEAR(sum, 0.375, 1e-12);
  const std::string text = tune_text(result);
  for (const char* points : {"+25.0", "+10.0", "+2.5", "+0.0"}) {
    EXPECT_NE(text.find(points), std::string::npos) << points << " in\n" << text;
  }
}

TEST(Tune, GainsWithinTheSpreadsAreNotKept) {
  // Spreads of 3 and 3 hide the 5 of bf16, not the 20 of the buckets.
  const TuneResult result = search_with_spread(3.0);
  EXPECT_EQ(result.best().samples_per_second, 170.0);
  EXPECT_EQ(trial_of(result, "sync.wire=bf16").outcome, TuneOutcome::not_better);
  EXPECT_EQ(search_with_spread(2.4).best().samples_per_second, 175.0);
}

TEST(Tune, RefusedAndFailedCandidatesAreListedWithTheirReason) {
  const TuneResult result = search_with_spread(0.0);
  const TuneTrial& refused = trial_of(result, "ring.algorithm=hierarchical");
  EXPECT_EQ(refused.outcome, TuneOutcome::refused);
  EXPECT_EQ(refused.reason, "ring.algorithm: one node only");
  EXPECT_EQ(trial_of(result, "ring.algorithm=tree").outcome, TuneOutcome::failed);
  const std::string text = tune_text(result);
  EXPECT_NE(text.find("hierarchical: refused: ring.algorithm: one node only"), std::string::npos);
  EXPECT_NE(text.find("tree: failed: rank 1 was lost"), std::string::npos);
}

TEST(Tune, BatchIsChangedLastAndMarked) {
  Config user;
  user.sync = "ps";
  const std::vector<TuneStage> stages = tune_stages(user);
  EXPECT_EQ(stages.back().candidates.back().flags.front(), "train.accumulate=4");
  EXPECT_EQ(stages.back().candidates.back().note, "changes the batch: 4 x larger");
  EXPECT_TRUE(
      std::ranges::any_of(stages, [](const TuneStage& stage) { return stage.name == "servers"; }));
}

}  // namespace
}  // namespace paceline
