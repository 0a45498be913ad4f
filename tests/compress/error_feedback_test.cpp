// SPDX-License-Identifier: Apache-2.0
#include "common/compress/error_feedback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/compress/codec_cases.h"

namespace paceline {
namespace {

using testing::codec_of;
using testing::decoded;
using testing::gaussian;
using testing::Message;
using testing::round_trip;

/// Sum of what a receiver decodes over `steps` steps of the same gradient.
std::vector<double> received(const Codec& codec, ErrorFeedback& feedback,
                             const std::vector<float>& gradient, int steps) {
  std::vector<double> total(gradient.size(), 0.0);
  for (int step = 0; step < steps; ++step) {
    std::vector<float> scratch = gradient;
    Message message(codec.max_bytes(gradient.size()));
    const CodecContext context{.seed = 5, .step = step, .scale = 0.125F};
    const std::size_t bytes = feedback.encode(codec, scratch, context, message.bytes());
    const auto out = decoded(codec, message.bytes().first(bytes), context, gradient.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      total[i] += static_cast<double>(out[i]);
    }
  }
  return total;
}

TEST(ErrorFeedback, NothingIsLostOverSteps) {
  const auto gradient = gaussian(1000, 1);
  for (const char* name :
       {"fp16", "bf16", "topk", "randomk", "threshold", "onebit", "sign", "qsgd"}) {
    const auto codec = codec_of(name);
    ErrorFeedback feedback(gradient.size(), true);
    EXPECT_EQ(feedback.bytes(), gradient.size() * sizeof(float));
    constexpr int kSteps = 1000;  // ten times what topk and randomk need to send all once
    const auto total = received(*codec, feedback, gradient, kSteps);
    double lost = 0.0;
    double largest = 0.0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double sum = kSteps * static_cast<double>(gradient[i]);
      // What was sent and what is still to be sent make the sum of the gradients.
      ASSERT_NEAR(total[i] + static_cast<double>(feedback.residual()[i]), sum,
                  1e-4 * kSteps * std::fabs(static_cast<double>(gradient[i])) + 5e-3)
          << name << i;
      lost += std::pow(total[i] / kSteps - static_cast<double>(gradient[i]), 2);
      largest += std::pow(static_cast<double>(gradient[i]), 2);
    }
    // The residual stays bounded, so the mean of the messages goes to the gradient.
    EXPECT_LT(std::sqrt(lost / largest), 0.3) << name;
  }
}

TEST(ErrorFeedback, ResidualIsWhatTheMessageLacks) {
  for (const std::size_t n : testing::kSizes) {
    const auto gradient = gaussian(n, 2);
    for (const char* name :
         {"fp16", "bf16", "topk", "randomk", "threshold", "onebit", "sign", "qsgd"}) {
      const auto codec = codec_of(name);
      ErrorFeedback feedback(n + 3, true);
      const CodecContext context{.begin = 3};
      const auto out = round_trip(*codec, gradient, context);
      std::vector<float> scratch = gradient;
      Message message(codec->max_bytes(n));
      static_cast<void>(feedback.encode(*codec, scratch, context, message.bytes()));
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(feedback.residual()[3 + i], gradient[i] - out[i], 1e-6) << name << i;
      }
      EXPECT_EQ(feedback.residual()[0], 0.0F);
    }
  }
}

TEST(ErrorFeedback, WhatIsNotFiniteIsNotRemembered) {
  auto gradient = gaussian(100, 3);
  gradient[7] = std::numeric_limits<float>::quiet_NaN();
  gradient[8] = std::numeric_limits<float>::infinity();
  for (const char* name :
       {"fp16", "bf16", "topk", "randomk", "threshold", "onebit", "sign", "qsgd"}) {
    const auto codec = codec_of(name);
    ErrorFeedback feedback(gradient.size(), true);
    std::vector<float> scratch = gradient;
    Message message(codec->max_bytes(gradient.size()));
    static_cast<void>(feedback.encode(*codec, scratch, {}, message.bytes()));
    for (const float value : feedback.residual()) {
      ASSERT_TRUE(std::isfinite(value)) << name;
    }
    EXPECT_EQ(feedback.residual()[7], 0.0F);
    EXPECT_EQ(feedback.residual()[8], 0.0F);
  }
}

TEST(ErrorFeedback, OffKeepsNothing) {
  ErrorFeedback feedback(1000, false);
  EXPECT_EQ(feedback.bytes(), 0U);
  auto gradient = gaussian(1000, 4);
  const auto codec = codec_of("topk");
  Message first(*codec, gradient, {});
  for (int step = 0; step < 2; ++step) {
    Message message(codec->max_bytes(1000));
    static_cast<void>(feedback.encode(*codec, gradient, {}, message.bytes()));
    EXPECT_TRUE(std::ranges::equal(message.bytes(), first.bytes()));
  }
}

}  // namespace
}  // namespace paceline
