// SPDX-License-Identifier: Apache-2.0
// What a server makes of stale gradients (rate by staleness, delay compensation) against numbers
// worked out by hand and against the papers' algorithms in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "ps/state_blob.h"
#include "tests/ps/server_rig.h"

namespace paceline {
namespace {

using testing::kAsp;
using testing::Rig;
using testing::ssp;
using Variant = DelayCompensation::Variant;

PsRule compensating(Variant variant, PsRule rule = kAsp) {
  rule.compensation = {variant, paper_lambda(variant), 0.95F};
  return rule;
}

void pull(Rig& rig, int w) {
  rig.send(rig.client(w).about_key(MessageKind::pull, 0, 0), {});
  EXPECT_EQ(rig.take(w).header.kind, MessageKind::weights);
}

/// Weight 0 after a push by `w` of a gradient whose mean over `samples` is `mean`, rate 0.5.
float after_push(Rig& rig, int w, std::int64_t samples, float mean) {
  rig.push(w, samples, mean * static_cast<float>(samples), 0, 0.5F);
  rig.take(w);
  return rig.server().weights(0)[0];
}

TEST(StalenessRate, DividesByTheUpdatesInBetween) {
  for (PsRule rule : {kAsp, ssp(3)}) {
    rule.rate_by_staleness = true;
    Rig rig(4, rule);
    const float gradient = 6.0F;  // at rate 0.5: 3 / max(staleness, 1)
    EXPECT_FLOAT_EQ(after_push(rig, 0, 1, gradient), -3.0F) << "staleness 0";
    EXPECT_FLOAT_EQ(after_push(rig, 1, 3, gradient), -6.0F) << "staleness 1";
    EXPECT_FLOAT_EQ(after_push(rig, 2, 5, gradient), -7.5F) << "staleness 2";
    EXPECT_FLOAT_EQ(after_push(rig, 3, 2, gradient), -8.5F) << "staleness 3";
    EXPECT_FLOAT_EQ(after_push(rig, 3, 2, gradient), -11.5F) << "fresh again";
  }
}

TEST(DelayCompensation, ConstantByHand) {
  for (const PsRule& kind : {kAsp, ssp(3)}) {
    Rig rig(2, compensating(Variant::constant, kind));
    pull(rig, 0);
    EXPECT_FLOAT_EQ(after_push(rig, 1, 2, 2.0F), -1.0F) << "nothing changed since its pull";
    // g = 1 on w_bak = 0 meets w_now = -1: 1 + 0.04·1·(-1 - 0) = 0.96, whatever the samples.
    EXPECT_FLOAT_EQ(after_push(rig, 0, 3, 1.0F), -1.48F);
    // Worker 1 was sent -1 and meets -1.48: 2 + 0.04·4·(-0.48) = 1.9232.
    EXPECT_FLOAT_EQ(after_push(rig, 1, 1, 2.0F), -2.4416F);
  }
}

TEST(DelayCompensation, AdaptiveByHand) {
  Rig rig(2, compensating(Variant::adaptive));
  EXPECT_FLOAT_EQ(after_push(rig, 1, 2, 2.0F), -1.0F);
  // MeanSquare 0.05·4 = 0.2, then 0.95·0.2 + 0.05·1 = 0.24; λ = 2 / sqrt(0.24 + 1e-7);
  // g = 1 - λ = -3.0824820; w = -1 + 0.5·3.0824820.
  EXPECT_NEAR(after_push(rig, 0, 3, 1.0F), 0.5412410F, 1e-6F);
}

TEST(DelayCompensation, APushWithoutSamplesLeavesEverything) {
  Rig rig(2, compensating(Variant::adaptive));
  EXPECT_FLOAT_EQ(after_push(rig, 1, 2, 2.0F), -1.0F);
  rig.push(0, 0, 9.0F);
  rig.take(0);
  EXPECT_EQ(rig.server().version(0), 1U);
  pull(rig, 1);
  // Had it counted, worker 0 would be compensated and the mean square be another.
  EXPECT_FLOAT_EQ(after_push(rig, 1, 1, 2.0F), -2.0F);
  EXPECT_FLOAT_EQ(after_push(rig, 0, 1, 1.0F), -2.0F - 0.5F * (1.0F - 2.0F / std::sqrt(0.4205F)));
}

/// The rules as the papers state them, in double.
class Reference {
 public:
  Reference(const JobDescription& job, double first)
      : job_(job),
        weights_(job.buckets[0], first),
        square_(weights_.size(), 0.0),
        moment1_(square_),
        moment2_(square_),
        backups_(static_cast<std::size_t>(job.world), as_sent()),
        pulled_(backups_.size(), 0) {}

  /// Algorithm 2 of Zheng et al. with Zhang et al.'s rate; the worker then has the new weights.
  void push(std::size_t worker, const std::vector<float>& sum, double samples, double lr) {
    const DelayCompensation& rule = job_.rule.compensation;
    const auto staleness = static_cast<double>(version_ - pulled_[worker]);
    const double rate = job_.rule.rate_by_staleness ? lr / std::max(staleness, 1.0) : lr;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const double g = static_cast<double>(sum[i]) / samples;
      double lambda = 0.0;
      if (rule.variant == Variant::constant) {
        lambda = 0.04;
      } else if (rule.variant == Variant::adaptive) {
        square_[i] = 0.95 * square_[i] + 0.05 * g * g;
        lambda = 2.0 / std::sqrt(square_[i] + 1e-7);
      }
      step(i, g + lambda * g * g * (weights_[i] - backups_[worker][i]), rate);
    }
    ++version_;
    backups_[worker] = as_sent();
    pulled_[worker] = version_;
  }
  [[nodiscard]] const std::vector<double>& weights() const { return weights_; }

 private:
  void step(std::size_t i, double g, double rate) {
    const OptimizerSpec& spec = job_.optimizer;
    if (spec.kind != OptimizerKind::adam) {
      moment1_[i] = static_cast<double>(spec.momentum) * moment1_[i] + g;
      weights_[i] -= rate * moment1_[i];
      return;
    }
    const double b1 = static_cast<double>(spec.beta1);
    const double b2 = static_cast<double>(spec.beta2);
    moment1_[i] = b1 * moment1_[i] + (1.0 - b1) * g;
    moment2_[i] = b2 * moment2_[i] + (1.0 - b2) * g * g;
    const auto t = static_cast<double>(version_ + 1);
    weights_[i] -=
        rate * (moment1_[i] / (1.0 - std::pow(b1, t))) /
        (std::sqrt(moment2_[i] / (1.0 - std::pow(b2, t))) + static_cast<double>(spec.epsilon));
  }
  /// Bfloat16 keeps the upper half of a float, to the nearest, ties to even.
  [[nodiscard]] std::vector<double> as_sent() const {
    std::vector<double> sent = weights_;
    for (double& value : sent) {
      if (job_.format.wire == "bf16") {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
        const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
        value = static_cast<double>(std::bit_cast<float>(rounded & 0xFFFF0000U));
      }
    }
    return sent;
  }

  JobDescription job_;
  std::vector<double> weights_;
  std::vector<double> square_;
  std::vector<double> moment1_;
  std::vector<double> moment2_;
  std::vector<std::vector<double>> backups_;
  std::vector<std::uint64_t> pulled_;
  std::uint64_t version_ = 0;
};

/// A push as the job's format carries it.
void push_gradient(Rig& rig, const JobDescription& job, int w, const StepInfo& info,
                   std::vector<float> sum) {
  const auto codec = job.format.codec();
  if (!codec) {
    rig.send(rig.client(w).push(0, info), Rig::floats(sum));
    return;
  }
  std::vector<std::byte> room(codec->max_bytes(sum.size()));
  const auto context = job.format.context(static_cast<std::uint64_t>(info.step), 0,
                                          static_cast<std::uint64_t>(info.samples), w);
  room.resize(codec->encode(sum, context, room));
  rig.send(rig.client(w).push_encoded(0, info, room.size()), Payload::copy_of(room));
}

/// Workers take turns at random, so that staleness varies.
void expect_like_reference(const JobDescription& job) {
  constexpr float kFirst = 0.3F;
  Rig rig(job, kFirst);
  Reference reference(job, kFirst);
  std::mt19937 random(11);
  const std::size_t n = job.buckets[0];
  for (std::int64_t step = 0; step < 60; ++step) {
    const auto w = static_cast<int>(random() % static_cast<unsigned>(job.world));
    // Small multiples of 1/8 times a power of two survive 16 bits.
    const std::int64_t samples = std::int64_t{1} << (random() % 3);
    std::vector<float> sum(n);
    for (float& value : sum) {
      value = (static_cast<float>(random() % 33) - 16.0F) / 8.0F * static_cast<float>(samples);
    }
    push_gradient(rig, job, w, {step, 0.03125F, samples, 0}, sum);
    EXPECT_EQ(rig.take(w).header.kind, MessageKind::weights);
    reference.push(static_cast<std::size_t>(w), sum, static_cast<double>(samples), 0.03125);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(static_cast<double>(rig.server().weights(0)[i]), reference.weights()[i], 2e-5)
          << "element " << i << " after step " << step;
    }
  }
}

TEST(StaleRules, FollowThePapersInDouble) {
  for (const Variant variant : {Variant::none, Variant::constant, Variant::adaptive}) {
    for (const bool by_staleness : {false, true}) {
      JobDescription job = Rig::job_of(4, compensating(variant), {5});
      job.rule.rate_by_staleness = by_staleness;
      SCOPED_TRACE(::testing::Message() << static_cast<int>(variant) << by_staleness);
      expect_like_reference(job);
      job.optimizer.momentum = 0.5F;
      expect_like_reference(job);
      job.optimizer.kind = OptimizerKind::adam;
      expect_like_reference(job);
    }
  }
}

TEST(StaleRules, BackupsAreWhatSixteenBitAnswersSay) {
  for (const Variant variant : {Variant::constant, Variant::adaptive}) {
    JobDescription job = Rig::job_of(3, compensating(variant), {5'000});
    job.format.wire = "bf16";
    expect_like_reference(job);
  }
}

TEST(StaleRules, ACodecsGradientIsCompensatedAfterDecoding) {
  JobDescription job = Rig::job_of(3, compensating(Variant::constant), {64});
  job.format.compress.method = "topk";
  job.format.compress.density = 1.0;
  expect_like_reference(job);
}

TEST(DelayCompensation, StateSurvivesAServer) {
  Rig before(2, compensating(Variant::adaptive));
  after_push(before, 1, 2, 2.0F);
  before.send(before.client(0).about_key(MessageKind::state_get, 0, 0), {});
  const Outgoing state = before.take(0);
  Rig after(2, compensating(Variant::adaptive));
  after.send(after.client(0).about_key(MessageKind::state_put, 0, state.payload.size()),
             state.payload);
  after.take(0);
  pull(after, 0);
  pull(after, 1);
  EXPECT_FLOAT_EQ(after_push(after, 1, 2, 2.0F), -2.0F);
  // MeanSquare (0.2·0.95 + 0.2)·0.95 + 0.05 = 0.4205.
  EXPECT_FLOAT_EQ(after_push(after, 0, 1, 1.0F), -2.0F - 0.5F * (1.0F - 2.0F / std::sqrt(0.4205F)));
  Rig plain(2, kAsp);
  plain.send(plain.client(0).about_key(MessageKind::state_get, 0, 0), {});
  const Outgoing without = plain.take(0);
  after.send(after.client(0).about_key(MessageKind::state_put, 0, without.payload.size()),
             without.payload);
  EXPECT_NE(after.refusal(0).find("mean_square"), std::string::npos);
}

TEST(DelayCompensation, MemoryIsOneVersionPerWorkerAtMost) {
  constexpr int kWorld = 4;
  constexpr std::size_t kBytes = 8 * sizeof(float);
  Rig plain(kWorld, kAsp);
  EXPECT_EQ(plain.server().memory().staging, 0U);
  Rig rig(kWorld, compensating(Variant::adaptive));
  EXPECT_EQ(rig.server().memory().weights, kBytes);
  EXPECT_EQ(rig.server().memory().optimizer, kBytes) << "sgd without momentum: the mean square";
  EXPECT_EQ(rig.server().memory().staging, 0U) << "all are at the first version";
  for (int round = 0; round < 3; ++round) {
    for (int w = 0; w < kWorld; ++w) {
      after_push(rig, w, 1, 1.0F);
    }
  }
  // Workers on four versions, of which one is the newest, and room for the next one.
  EXPECT_EQ(rig.server().memory().staging, kWorld * kBytes);
}

}  // namespace
}  // namespace paceline
