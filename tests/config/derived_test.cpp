// SPDX-License-Identifier: Apache-2.0
// What follows from several keys: the scaled learning rate and the ranks' shares of the data.
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/config/load_imbalance.h"
#include "common/config/validate.h"

namespace paceline {
namespace {

Config large_batch(const std::string& scale) {
  Config config;
  config.optimizer.lr = 0.1;
  config.lr.scale = scale;
  config.lr.base_batch = 256;
  config.train.batch = 64;
  config.train.accumulate = 4;
  config.world = 16;  // 4096 samples per step: k = 16
  return config;
}

TEST(PeakRate, FollowsTheSamplesPerStep) {
  EXPECT_DOUBLE_EQ(peak_rate(large_batch("none")), 0.1);
  EXPECT_DOUBLE_EQ(peak_rate(large_batch("linear")), 1.6);
  EXPECT_DOUBLE_EQ(peak_rate(large_batch("sqrt")), 0.4);
  Config small = large_batch("linear");
  small.train.accumulate = 1;
  small.world = 1;  // a quarter of the base
  EXPECT_DOUBLE_EQ(peak_rate(small), 0.025);
}

TEST(PeakRate, BoundsTheCosinesFloor) {
  const std::string_view backends[] = {"ring"};
  Config config = large_batch("linear");
  config.sync = "ring";
  config.lr.schedule = "cosine";
  config.lr.min_lr = 1.5;
  EXPECT_NO_THROW(validate(config, {backends, nullptr}));
  config.lr.min_lr = 1.7;
  EXPECT_THROW(validate(config, {backends, nullptr}), ConfigError);
}

std::string refusal(std::string_view text, int world) {
  try {
    (void)parse_shares(text, world);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

template <typename Parse>
std::string refusal_of(Parse parse) {
  try {
    (void)parse();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(SlowRanks, AreFactorsByRank) {
  EXPECT_EQ(parse_slow_ranks("", 2), (std::vector<double>{1.0, 1.0}));
  EXPECT_EQ(parse_slow_ranks("2:4x", 3), (std::vector<double>{1.0, 1.0, 4.0}));
  EXPECT_EQ(parse_slow_ranks("2:4x,0:1.5x", 3), (std::vector<double>{1.5, 1.0, 4.0}));
  for (const char* text : {"3:2x", "-1:2x", "0:0.5x", "0:1001x", "0:2x,0:3x", "0:2", "0", ":",
                           "0:x", "x", "0:2x,", ",0:2x", "0:nanx", "0:infx", "0 :2x", "0:2x;1:2x",
                           "0:-2x", " ", "99999999999999999999:2x"}) {
    const std::string message = refusal_of([&] { return parse_slow_ranks(text, 3); });
    EXPECT_NE(message.find("fault.slow_rank = \"" + std::string(text)), std::string::npos)
        << text << ": " << message;
  }
}

TEST(Jitter, IsADistributionAndItsWidth) {
  EXPECT_EQ(parse_jitter("none").kind, JitterKind::none);
  EXPECT_EQ(parse_jitter("uniform:0.2").kind, JitterKind::uniform);
  EXPECT_EQ(parse_jitter("normal:0.1").amount, 0.1);
  EXPECT_EQ(parse_jitter("lognormal:0.3").kind, JitterKind::lognormal);
  EXPECT_EQ(parse_jitter("exponential:10").kind, JitterKind::exponential);
  for (const char* text : {"", "uniform", "uniform:", "uniform:0", "uniform:-1", "uniform:10.1",
                           "uniform:nan", "cauchy:1", ":1", "none:1", "normal:0.1,2"}) {
    const std::string message = refusal_of([&] { return parse_jitter(text); });
    EXPECT_NE(message.find("fault.jitter = \"" + std::string(text) + "\""), std::string::npos)
        << text << ": " << message;
  }
}

TEST(Shares, OneNumberPerRank) {
  EXPECT_EQ(parse_shares("", 3), std::vector<double>());
  EXPECT_EQ(parse_shares("2,1,0.5", 3), (std::vector<double>{2.0, 1.0, 0.5}));
  EXPECT_EQ(parse_shares("7", 1), std::vector<double>{7.0});
  for (const char* text : {"2,1", "2,1,1,1", "2,,1", "2,1,", ",", "2,1,x", "2,1,0", "2,1,-1",
                           "2,1,nan", "2,1,inf", "2,1,1e300", "2;1;1", " "}) {
    const std::string message = refusal(text, 3);
    EXPECT_NE(message.find("data.shares = \"" + std::string(text)), std::string::npos) << message;
    EXPECT_NE(message.find("each of the 3 ranks"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace paceline
