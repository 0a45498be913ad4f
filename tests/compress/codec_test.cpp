// SPDX-License-Identifier: Apache-2.0
// Message lengths, and what comes back, for every codec.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/error.h"
#include "common/base/half.h"
#include "tests/compress/codec_cases.h"

namespace paceline {
namespace {

using testing::codec_of;
using testing::decoded;
using testing::gaussian;
using testing::kSizes;
using testing::Message;
using testing::method;
using testing::round_trip;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::size_t up(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}

/// 1% of n, at least one.
std::size_t one_percent(std::size_t n) {
  return n == 0 ? 0 : std::max<std::size_t>(1, up(n, 100));
}

TEST(Codec, LengthsFollowTheFormulas) {
  for (const std::size_t n : kSizes) {
    const auto in = gaussian(n, 1);
    const auto bytes = [&](const std::string& name) {
      const auto codec = codec_of(name);
      EXPECT_EQ(codec->name(), name);
      const std::size_t length = Message(*codec, in, {}).bytes().size();
      EXPECT_LE(length, codec->max_bytes(n));
      return length;
    };
    EXPECT_EQ(bytes("fp16"), 2 * n);
    EXPECT_EQ(bytes("bf16"), 2 * n);
    EXPECT_EQ(bytes("topk"), 8 * one_percent(n)) << n;
    EXPECT_EQ(bytes("randomk"), 4 * one_percent(n)) << n;
    const auto over =
        std::count_if(in.begin(), in.end(), [](float v) { return std::fabs(v) >= 1e-3F; });
    EXPECT_EQ(bytes("threshold"), 8 * static_cast<std::size_t>(over) + 8);
    EXPECT_EQ(bytes("onebit"), 8 + 8 * up(n, 64));
    EXPECT_EQ(bytes("sign"), 8 + 8 * up(n, 64));
    for (const auto& [levels, bits] :
         {std::pair{1, 2}, {2, 3}, {3, 3}, {4, 4}, {15, 5}, {16, 6}, {255, 9}, {32767, 16}}) {
      CompressConfig config = method("qsgd");
      config.levels = levels;
      const auto codec = make_codec(config, "fp32");
      EXPECT_EQ(Message(*codec, in, {}).bytes().size(),
                4 * up(n, 512) + 8 * up(n * static_cast<std::size_t>(bits), 64))
          << n << " elements, " << levels << " levels";
    }
  }
}

TEST(Codec, NothingAsksForNone) {
  EXPECT_EQ(make_codec({}, "fp32"), nullptr);
  EXPECT_EQ(make_codec(method("powersgd"), "fp32"), nullptr);
  EXPECT_EQ(make_codec({}, "bf16")->name(), "bf16");
  EXPECT_EQ(codec_of("fp16")->summable(), DataType::f16);
  EXPECT_EQ(codec_of("bf16")->summable(), DataType::bf16);
  EXPECT_EQ(codec_of("randomk")->summable(), DataType::f32);
  EXPECT_EQ(codec_of("topk")->summable(), std::nullopt);
  EXPECT_THROW(static_cast<void>(make_codec(method("topk"), "fp16")), ConfigError);
  EXPECT_THROW(static_cast<void>(codec_of("gzip")), ConfigError);
}

TEST(Codec, DensityIsNotRoundedUpByItsBinaryFraction) {
  CompressConfig config = method("topk");
  config.density = 0.07;  // 100·0.07 is 7.000000000000001 in double
  EXPECT_EQ(make_codec(config, "fp32")->max_bytes(100), 7U * 8);
  config.density = 1.0;
  EXPECT_EQ(make_codec(config, "fp32")->max_bytes(3), 3U * 8);
}

TEST(Codec, SixteenBitsAreWithinHalfAUnit) {
  for (const std::size_t n : kSizes) {
    const auto in = gaussian(n, 2);
    // fp16 keeps 11 significant bits, and 2^-25 below its normal numbers; bf16 keeps 8.
    for (const auto& [name, relative] : {std::pair{"fp16", 0x1p-11F}, {"bf16", 0x1p-8F}}) {
      const auto out = round_trip(*codec_of(name), in, {.scale = 1.0F / 64});
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(out[i], in[i], std::fabs(in[i]) * relative + 64 * 0x1p-25F) << name << i;
      }
    }
  }
}

TEST(Codec, HalfSendsTheMeanSoThatLargeSumsFit) {
  const std::vector<float> in{6e5F, -6e5F};
  EXPECT_TRUE(std::isinf(round_trip(*codec_of("fp16"), in, {})[0]));
  const auto out = round_trip(*codec_of("fp16"), in, {.scale = 0x1p-6F});
  EXPECT_NEAR(out[0], 6e5F, 6e5F * 0x1p-11F);
  EXPECT_NEAR(out[1], -6e5F, 6e5F * 0x1p-11F);
}

/// The k largest by a full sort; ties go to the lower index, NaN first.
std::vector<float> topk_by_sort(const std::vector<float>& in, std::size_t k) {
  std::vector<std::size_t> order(in.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto size = [&](std::size_t i) {
    return std::isnan(in[i]) ? 2e38 * 2 : std::fabs(static_cast<double>(in[i]));
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::isnan(in[a]) != std::isnan(in[b]) ? std::isnan(in[a]) : size(a) > size(b);
  });
  std::vector<float> out(in.size(), 0.0F);
  for (std::size_t i = 0; i < k; ++i) {
    out[order[i]] = in[order[i]];
  }
  return out;
}

TEST(Topk, EqualsAFullSort) {
  for (const double density : {0.001, 0.01, 0.3, 1.0}) {
    CompressConfig config = method("topk");
    config.density = density;
    const auto codec = make_codec(config, "fp32");
    for (const std::size_t n : kSizes) {
      auto in = gaussian(n, 3);
      EXPECT_EQ(round_trip(*codec, in, {}), topk_by_sort(in, codec->max_bytes(n) / 8)) << n;
      for (float& value : in) {
        value = std::round(value);  // many ties, zeros among them
      }
      EXPECT_EQ(round_trip(*codec, in, {}), topk_by_sort(in, codec->max_bytes(n) / 8)) << n;
    }
    const std::vector<float> zeros(1000, 0.0F);
    EXPECT_EQ(round_trip(*codec, zeros, {}), zeros);
  }
}

TEST(Topk, NanCountsAsLargest) {
  auto in = gaussian(1000, 4);
  in[700] = kNan;
  in[300] = -kInfinity;
  const auto out = round_trip(*codec_of("topk"), in, {});
  EXPECT_TRUE(std::isnan(out[700]));
  EXPECT_EQ(out[300], -kInfinity);
  EXPECT_EQ(std::count(out.begin(), out.end(), 0.0F), 990);
}

TEST(Threshold, SendsWhatTheMeanReaches) {
  CompressConfig config = method("threshold");
  config.threshold = 0.5;
  const auto codec = make_codec(config, "fp32");
  for (const std::size_t n : kSizes) {
    auto in = gaussian(n, 5);
    if (n > 2) {
      in[1] = kNan;
    }
    const auto out = round_trip(*codec, in, {.scale = 0.25F});
    for (std::size_t i = 0; i < n; ++i) {
      const bool sent = std::isnan(in[i]) || std::fabs(in[i]) * 0.25F >= 0.5F;
      ASSERT_TRUE(sent ? std::isnan(in[i]) == std::isnan(out[i]) &&
                             (std::isnan(in[i]) || out[i] == in[i])
                       : out[i] == 0.0F)
          << i << " of " << n;
    }
  }
}

TEST(Randomk, RanksAgreeOnIndicesAndStepsDiffer) {
  const auto codec = codec_of("randomk");
  const std::vector<float> ones(1000, 1.0F);
  const auto first = round_trip(*codec, ones, {.seed = 7, .step = 3, .begin = 40, .rank = 0});
  EXPECT_EQ(first, round_trip(*codec, ones, {.seed = 7, .step = 3, .begin = 40, .rank = 5}));
  EXPECT_EQ(std::accumulate(first.begin(), first.end(), 0.0F), 10.0F);
  EXPECT_NE(first, round_trip(*codec, ones, {.seed = 7, .step = 4, .begin = 40, .rank = 0}));
  EXPECT_NE(first, round_trip(*codec, ones, {.seed = 8, .step = 3, .begin = 40, .rank = 0}));
  EXPECT_NE(first, round_trip(*codec, ones, {.seed = 7, .step = 3, .begin = 41, .rank = 0}));
}

TEST(Randomk, SumsHopByHop) {
  const auto codec = codec_of("randomk");
  const auto a = gaussian(1000, 6);
  const auto b = gaussian(1000, 7);
  Message sum(*codec, a, {.rank = 0});
  Message other(*codec, b, {.rank = 1});
  for (std::size_t i = 0; i < 10; ++i) {
    sum.at<float>(0)[i] += other.at<float>(0)[i];
  }
  const auto out = decoded(*codec, sum.bytes(), {}, 1000);
  int found = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    if (out[i] != 0.0F) {
      ++found;
      EXPECT_EQ(out[i], a[i] + b[i]);
    }
  }
  EXPECT_EQ(found, 10);
}

/// The largest |mean over `steps` steps of the decoded messages − in| in standard errors, where an
/// element's variance is `variance(i)`.
template <typename Variance>
double worst_bias(const Codec& codec, const std::vector<float>& in, int steps, Variance variance) {
  std::vector<double> sum(in.size(), 0.0);
  for (int step = 0; step < steps; ++step) {
    const auto out = round_trip(codec, in, {.seed = 11, .step = step});
    for (std::size_t i = 0; i < in.size(); ++i) {
      sum[i] += static_cast<double>(out[i]);
    }
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double bias = std::fabs(sum[i] / steps - static_cast<double>(in[i]));
    worst = std::max(worst, bias / (std::sqrt(variance(i) / steps) + 1e-6));
  }
  return worst;
}

TEST(Randomk, IsUnbiasedWithoutErrorFeedback) {
  CompressConfig config = method("randomk", false);
  config.density = 0.25;
  const auto in = gaussian(40, 8);
  const double worst = worst_bias(*make_codec(config, "fp32"), in, 20000, [&](std::size_t i) {
    const auto value = static_cast<double>(in[i]);
    return value * value * 3.0;  // (n/k)²·k/n − 1
  });
  EXPECT_LT(worst, 5.0);
}

TEST(Qsgd, IsUnbiasedAndWithinOneLevel) {
  for (const int levels : {1, 4, 15}) {
    CompressConfig config = method("qsgd");
    config.levels = levels;
    const auto codec = make_codec(config, "fp32");
    const auto in = gaussian(600, 9);
    const auto norm_of = [&](std::size_t i) {
      const auto begin = in.begin() + (i < 512 ? 0 : 512);
      const auto end = i < 512 ? in.begin() + 512 : in.end();
      const auto largest = *std::max_element(
          begin, end, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
      return std::fabs(static_cast<double>(largest));
    };
    const auto out = round_trip(*codec, in, {.seed = 1, .rank = 2});
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_LE(std::fabs(out[i] - in[i]), norm_of(i) / levels * 1.0001) << i;
    }
    const double worst = worst_bias(*codec, in, 4000, [&](std::size_t i) {
      const double step = norm_of(i) / levels;
      const double part = std::fmod(std::fabs(static_cast<double>(in[i])), step) / step;
      return step * step * part * (1.0 - part);
    });
    EXPECT_LT(worst, 5.0) << levels;
  }
}

TEST(Qsgd, RanksRoundIndependently) {
  const auto codec = codec_of("qsgd");
  const auto in = gaussian(600, 10);
  const auto first = round_trip(*codec, in, {.rank = 0});
  EXPECT_EQ(first, round_trip(*codec, in, {.rank = 0}));
  EXPECT_NE(first, round_trip(*codec, in, {.rank = 1}));
  EXPECT_NE(first, round_trip(*codec, in, {.step = 1, .rank = 0}));
}

TEST(Qsgd, KeepsZerosTinyBlocksAndTheLargestElement) {
  std::vector<float> in(513, 0.0F);
  in[5] = -3.0F;
  in[512] = 1e-42F;
  const auto out = round_trip(*codec_of("qsgd"), in, {});
  EXPECT_EQ(out[5], -3.0F);
  EXPECT_EQ(out[6], 0.0F);
  EXPECT_NEAR(out[512], 1e-42F, 1e-43F);
}

TEST(Onebit, HoldsTheMeansOfBothSigns) {
  for (const std::size_t n : kSizes) {
    const auto in = gaussian(n, 12);
    double sums[2] = {0.0, 0.0};
    int counts[2] = {0, 0};
    for (const float value : in) {
      sums[value < 0.0F ? 1 : 0] += static_cast<double>(value);
      ++counts[value < 0.0F ? 1 : 0];
    }
    const auto out = round_trip(*codec_of("onebit"), in, {});
    for (std::size_t i = 0; i < n; ++i) {
      const int side = in[i] < 0.0F ? 1 : 0;
      ASSERT_NEAR(out[i], sums[side] / counts[side], 1e-6) << i << " of " << n;
    }
  }
}

TEST(Sign, IsAMajorityVoteScaledByTheMeanMagnitudes) {
  const auto codec = codec_of("sign");
  for (const std::size_t n : kSizes) {
    std::vector<float> sum(n, 0.0F);
    std::vector<int> votes(n, 0);
    Aggregate aggregate;
    double magnitude = 0.0;
    for (const int rank : {0, 1, 2, 3}) {  // an even number, so that ties occur
      const auto in = rank == 3 && n > 64 ? std::vector<float>(n, 0.0F)
                                          : gaussian(n, 20 + static_cast<unsigned>(rank));
      double mean = 0.0;
      for (const float value : in) {
        mean += std::fabs(static_cast<double>(value)) / static_cast<double>(n);
      }
      magnitude += mean;
      for (std::size_t i = 0; i < n && mean > 0.0; ++i) {
        votes[i] += in[i] < 0.0F ? -1 : 1;
      }
      Message message(*codec, in, {.rank = rank});
      codec->decode_add(message.bytes(), {.rank = rank}, sum, aggregate);
    }
    codec->finish(sum, aggregate);
    for (std::size_t i = 0; i < n; ++i) {
      const double sign = votes[i] > 0 ? 1.0 : (votes[i] < 0 ? -1.0 : 0.0);
      ASSERT_NEAR(sum[i], sign * magnitude, 1e-5) << i << " of " << n;
    }
  }
}

TEST(Codec, WhatIsNotFiniteShows) {
  for (const char* name : {"fp16", "bf16", "topk", "threshold", "onebit", "sign", "qsgd"}) {
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      auto in = gaussian(1000, 13);
      in[517] = bad;
      EXPECT_FALSE(std::isfinite(round_trip(*codec_of(name), in, {})[517])) << name << bad;
    }
  }
}

}  // namespace
}  // namespace paceline
