// SPDX-License-Identifier: Apache-2.0
// The consistency rules without a socket: clients and one server as state machines, messages
// delivered in whatever order the test likes.
#include "ps/server_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "tests/ps/ring_order_reference.h"
#include "tests/ps/server_rig.h"

namespace paceline {
namespace {

using testing::kAsp;
using testing::kBsp;
using testing::kNonce;
using testing::reference_weights;
using testing::Rig;
using testing::ssp;
using testing::test_gradient;
using testing::test_rate;
using testing::test_samples;

TEST(Bsp, AppliesTheMeanOverAllSamplesOnceAllHavePushed) {
  Rig rig(3, kBsp);
  rig.push(2, 5, 10.0F);
  rig.push(0, 1, 2.0F);
  EXPECT_FALSE(rig.has_answer(0));
  EXPECT_EQ(rig.server().version(0), 0U);
  rig.push(1, 2, 4.0F);
  for (int w = 0; w < 3; ++w) {
    const Outgoing answer = rig.take(w);
    EXPECT_EQ(answer.header.version, 1U);
    EXPECT_EQ(answer.header.staleness, 0U);
    EXPECT_FLOAT_EQ(answer.payload.floats()[7], -16.0F / 8.0F);
  }
}

/// What a worker answers norms with.
void send_factors(Rig& rig, int w, float factor, std::size_t key = 0) {
  const auto bytes = encode_factors({factor, {1.0F}});
  rig.send(rig.client(w).apply(key, false, bytes.size()), Payload::copy_of(bytes));
}

TEST(TwoPhases, AppliesOnceAllAgree) {
  Rig rig(2, kBsp, {8}, 1.0F);
  rig.push(0, 1, 2.0F);
  EXPECT_FALSE(rig.has_answer(0));
  rig.push(1, 3, 6.0F);
  for (int w = 0; w < 2; ++w) {
    const Outgoing norms = rig.take(w);
    EXPECT_EQ(norms.header.kind, MessageKind::norms);
    EXPECT_EQ(norms.header.samples, 4U);
    EXPECT_EQ(decode_norms(norms.payload.bytes(), 1)[0].gradient, 8 * 64.0);
  }
  EXPECT_EQ(rig.server().version(0), 0U);
  send_factors(rig, 1, 0.5F);
  EXPECT_FALSE(rig.has_answer(1));
  send_factors(rig, 1, 0.5F);
  EXPECT_NE(rig.refusal(1).find("out of turn"), std::string::npos);
  send_factors(rig, 0, 0.25F);
  EXPECT_NE(rig.refusal(0).find("other factors"), std::string::npos);
  send_factors(rig, 0, 0.5F);
  for (int w = 0; w < 2; ++w) {
    EXPECT_FLOAT_EQ(rig.take(w).payload.floats()[3], -8.0F / 4.0F * 0.5F);
  }
  send_factors(rig, 0, 0.5F);
  EXPECT_NE(rig.refusal(0).find("out of turn"), std::string::npos);
}

TEST(TwoPhases, AWorkerThatLeavesHoldsNobodyUp) {
  Rig rig(2, kBsp, {8}, 1.0F);
  rig.push(0);
  rig.push(1);
  EXPECT_EQ(rig.take(0).header.kind, MessageKind::norms);
  send_factors(rig, 0, 1.0F);
  rig.send(rig.client(1).to_server(MessageKind::goodbye, 0, 0), {});
  const Outgoing answer = rig.take(0);
  EXPECT_EQ(answer.header.kind, MessageKind::weights);
  EXPECT_FLOAT_EQ(answer.payload.floats()[0], -1.0F) << "both gradients were in the sum";
}

TEST(Bsp, TellsHowLongAPushWasHeld) {
  Rig rig(2, kBsp);
  rig.push(0);
  rig.push(1);
  EXPECT_EQ(rig.take(0).header.held_ns, 1U) << "the rig's clock ticks once per message";
  EXPECT_EQ(rig.take(1).header.held_ns, 0U);
}

TEST(Bsp, NothingChangesWithoutSamples) {
  Rig rig(2, kBsp);
  rig.push(0, 0, 7.0F);
  rig.push(1, 0, 7.0F);
  EXPECT_EQ(rig.take(0).header.version, 0U);
  EXPECT_EQ(rig.server().weights(0)[0], 0.0F);
}

TEST(Bsp, AnyOrderOfArrivalGivesTheSameBits) {
  const std::vector<std::size_t> buckets{1003};
  const BucketPlan plan(buckets);
  constexpr std::int64_t kSteps = 6;
  OptimizerSpec spec;
  const std::vector<float> zeros(1003, 0.0F);
  const auto expected = reference_weights(plan, 4, kSteps, spec, zeros);
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 5; ++repeat) {
    Rig rig(4, kBsp, buckets);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      std::vector<int> order{0, 1, 2, 3};
      std::shuffle(order.begin(), order.end(), random);
      for (const int w : order) {
        std::vector<float> gradient(1003);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = test_gradient(step, w, i);
        }
        rig.send(rig.client(w).push(0, {step, test_rate(step), test_samples(step, w), 0}),
                 Rig::floats(gradient));
      }
      for (int w = 0; w < 4; ++w) {
        rig.take(w);
      }
    }
    const auto weights = rig.server().weights(0);
    EXPECT_TRUE(std::equal(weights.begin(), weights.end(), expected.begin()));
  }
}

TEST(Bsp, AWorkerThatIsDoneIsNotWaitedFor) {
  Rig rig(3, kBsp);
  rig.push(0, 1, 3.0F);
  rig.push(1, 1, 5.0F);
  EXPECT_FALSE(rig.has_answer(0));
  rig.send(rig.client(2).to_server(MessageKind::goodbye, 0, 0), {});
  EXPECT_FLOAT_EQ(rig.take(0).payload.floats()[0], -4.0F);
  EXPECT_TRUE(rig.has_answer(1));
  EXPECT_FALSE(rig.server().finished());
}

TEST(Asp, AppliesEachPushAtOnceAndCountsStaleness) {
  Rig rig(3, kAsp);
  rig.push(0);
  rig.push(1);
  rig.push(2);
  EXPECT_EQ(rig.take(0).header.staleness, 0U);
  EXPECT_EQ(rig.take(1).header.staleness, 1U);
  EXPECT_EQ(rig.take(2).header.staleness, 2U);
  rig.push(2);  // pulled version 3, which is current
  EXPECT_EQ(rig.take(2).header.staleness, 0U);
  rig.push(0);  // pulled version 1; now 4
  const Outgoing answer = rig.take(0);
  EXPECT_EQ(answer.header.staleness, 3U);
  EXPECT_EQ(answer.header.version, 5U);
  EXPECT_FLOAT_EQ(answer.payload.floats()[0], -5.0F);
}

TEST(Asp, UsesTheMeanOverTheWorkersOwnSamples) {
  Rig rig(2, kAsp);
  rig.push(1, 4, 12.0F, 0, 0.5F);
  EXPECT_FLOAT_EQ(rig.take(1).payload.floats()[0], -1.5F);
}

TEST(Asp, ARepliedVersionStaysAsItWasSent) {
  Rig rig(2, kAsp);
  rig.push(0);
  const Outgoing kept = rig.take(0);
  for (int i = 0; i < 5; ++i) {
    rig.push(1);
    rig.take(1);
  }
  EXPECT_FLOAT_EQ(kept.payload.floats()[0], -1.0F);
  EXPECT_FLOAT_EQ(rig.server().weights(0)[0], -6.0F);
}

/// Random schedules: the gap between the fastest and the slowest worker never exceeds the bound,
/// nobody is held while within it, and everybody gets to the end.
class SspGap : public ::testing::TestWithParam<int> {};

TEST_P(SspGap, NeverExceedsTheBound) {
  const int bound = GetParam();
  constexpr int kWorld = 4;
  constexpr std::int64_t kSteps = 40;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Rig rig(kWorld, ssp(bound));
    std::vector<std::int64_t> started(kWorld, 0);  // steps whose push was sent
    std::vector<bool> open(kWorld, false);
    std::int64_t widest = 0;
    while (*std::min_element(started.begin(), started.end()) < kSteps) {
      std::vector<int> able;
      for (int w = 0; w < kWorld; ++w) {
        const auto i = static_cast<std::size_t>(w);
        if (open[i] && rig.has_answer(w)) {
          rig.take(w);
          open[i] = false;
        }
        if (!open[i] && started[i] < kSteps) {
          able.push_back(w);
        }
      }
      ASSERT_FALSE(able.empty()) << "everybody waits for everybody";
      // Worker 3 is four times slower.
      int w = able[random() % able.size()];
      if (w == 3 && able.size() > 1 && random() % 4 != 0) {
        w = able[0];
      }
      const auto i = static_cast<std::size_t>(w);
      // Before its push, a worker has computed on the answer of its last: its clock is `started`.
      const std::int64_t gap = started[i] - *std::min_element(started.begin(), started.end());
      ASSERT_LE(gap, bound);
      widest = std::max(widest, gap);
      rig.push(w);
      ++started[i];
      open[i] = true;
    }
    EXPECT_EQ(widest, bound) << "seed " << seed << ": the freedom was not used";
  }
}

INSTANTIATE_TEST_SUITE_P(Bounds, SspGap, ::testing::Values(0, 1, 2, 5));

TEST(Ssp, AHeldAnswerCarriesTheNewestWeightsAtItsRelease) {
  Rig rig(2, ssp(1));
  rig.push(0);
  rig.take(0);
  rig.push(0);  // clock 2, the other's 0: held
  EXPECT_FALSE(rig.has_answer(0));
  rig.push(1);
  const Outgoing answer = rig.take(0);
  EXPECT_EQ(answer.header.version, 3U);
  EXPECT_EQ(answer.header.staleness, 0U);
  EXPECT_FLOAT_EQ(answer.payload.floats()[0], -3.0F);
  EXPECT_EQ(rig.take(1).header.staleness, 2U);
}

TEST(Drain, FreesThoseWhoRunLongerAndRestartsTheClocks) {
  Rig rig(2, ssp(1));
  rig.push(0);
  rig.take(0);
  rig.send(rig.client(0).to_server(MessageKind::drain, 0, 0), {});
  for (int i = 0; i < 6; ++i) {  // far ahead of worker 0, which has drained
    rig.push(1);
    rig.take(1);
  }
  EXPECT_FALSE(rig.has_answer(0)) << "the other worker is still at work";
  rig.send(rig.client(1).to_server(MessageKind::drain, 0, 0), {});
  EXPECT_EQ(rig.take(0).header.kind, MessageKind::ack);
  EXPECT_EQ(rig.take(1).header.kind, MessageKind::ack);
  // Equal clocks again: worker 1 is not six steps ahead.
  rig.send(rig.client(0).about_key(MessageKind::pull, 0, 0), {});
  EXPECT_EQ(rig.take(0).header.version, 7U);
  rig.push(0);
  rig.take(0);
  rig.push(0);
  EXPECT_FALSE(rig.has_answer(0)) << "two ahead";
}

TEST(Faults, ADuplicateIsNeverAppliedTwice) {
  Rig rig(2, kAsp);
  const Header first = rig.push(0);
  rig.take(0);
  rig.send(first, Rig::floats(std::vector<float>(8, 1.0F)));
  EXPECT_EQ(rig.server().version(0), 1U);
  const Outgoing again = rig.raw_take(0);
  EXPECT_EQ(again.header.version, 1U);
}

TEST(Faults, ADuplicateOfAHeldPushIsIgnored) {
  Rig rig(2, kBsp);
  const Header first = rig.push(0, 1, 2.0F);
  rig.send(first, Rig::floats(std::vector<float>(8, 2.0F)));
  EXPECT_FALSE(rig.has_answer(0));
  rig.push(1, 1, 4.0F);
  EXPECT_FLOAT_EQ(rig.take(0).payload.floats()[0], -3.0F);
  EXPECT_FALSE(rig.has_answer(0));
}

TEST(Faults, RefusesByName) {
  Rig rig(2, kAsp);
  Header header = rig.client(0).about_key(MessageKind::pull, 0, 0);
  header.nonce = 1;
  rig.send(header, {});
  EXPECT_NE(rig.refusal(0).find("another job"), std::string::npos);
  header = rig.client(0).about_key(MessageKind::pull, 0, 0);
  header.key = 9;
  rig.send(header, {});
  EXPECT_NE(rig.refusal(0).find("does not own key 9"), std::string::npos);
  header = rig.client(1).push(0, {0, 1.0F, 1, 0});
  header.clock = 5;
  rig.send(header, Rig::floats(std::vector<float>(8)));
  EXPECT_NE(rig.refusal(1).find("at clock 5, its turn is 0"), std::string::npos);
  header.clock = 0;
  header.version = 3;
  rig.send(header, Rig::floats(std::vector<float>(8)));
  EXPECT_NE(rig.refusal(1).find("based on version 3"), std::string::npos);
  header.version = 0;
  rig.send(header, Rig::floats(std::vector<float>(7)));
  EXPECT_NE(rig.refusal(1).find("28 bytes, want 32"), std::string::npos);
  EXPECT_EQ(rig.server().version(0), 0U);
}

TEST(Faults, APullWaitsForTheFirstWeights) {
  const BucketPlan plan(std::vector<std::size_t>{4});
  const Partition partition(plan, 1);
  ServerState server({0, 1, 2, kNonce, kAsp, false}, make_policy(kAsp));
  ClientState first(0, kNonce, partition);
  ClientState second(1, kNonce, partition);
  JobDescription job;
  job.world = 2;
  job.rule = kAsp;
  job.buckets = {4};
  std::vector<Outgoing> out;
  server.on_message(second.to_server(MessageKind::hello, 0, 0), Payload::copy_of(encode(job)), 0,
                    out);
  out.clear();
  server.on_message(second.about_key(MessageKind::pull, 0, 0), {}, 0, out);
  EXPECT_TRUE(out.empty());
  server.on_message(first.about_key(MessageKind::init, 0, 16),
                    Rig::floats({1.0F, 2.0F, 3.0F, 4.0F}), 0, out);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].header.kind, MessageKind::ack);
  EXPECT_EQ(out[1].peer, 1);
  EXPECT_EQ(out[1].payload.floats()[3], 4.0F);
}

/// A policy of its own: what is more than one version old is dropped.
class DropStale final : public ApplyPolicy {
 public:
  [[nodiscard]] Decision on_push(int /*worker*/, std::uint64_t based_on,
                                 std::uint64_t current) const override {
    return {current - based_on > 1 ? Decision::Action::reject : Decision::Action::apply, 0.5F};
  }
  [[nodiscard]] bool may_pull(int /*worker*/, std::uint64_t /*clock*/,
                              std::uint64_t /*slowest*/) const override {
    return true;
  }
};

TEST(ApplyPolicy, MayScaleAndReject) {
  const BucketPlan plan(std::vector<std::size_t>{1});
  const Partition partition(plan, 1);
  ServerState server({0, 1, 3, kNonce, kAsp, false}, std::make_unique<DropStale>());
  JobDescription job;
  job.world = 3;
  job.rule = kAsp;
  job.buckets = {1};
  std::vector<Outgoing> out;
  std::deque<ClientState> clients;
  for (int w = 0; w < 3; ++w) {
    clients.emplace_back(w, kNonce, partition);
    server.on_message(clients.back().to_server(MessageKind::hello, 0, 0),
                      Payload::copy_of(encode(job)), 0, out);
  }
  server.on_message(clients[0].about_key(MessageKind::init, 0, 4), Rig::floats({0.0F}), 0, out);
  out.clear();
  for (ClientState& client : clients) {
    server.on_message(client.push(0, {0, 1.0F, 1, 0}), Rig::floats({1.0F}), 0, out);
  }
  ASSERT_EQ(out.size(), 3U);
  EXPECT_EQ(out[1].header.flags & kFlagRejected, 0);
  EXPECT_EQ(out[2].header.flags & kFlagRejected, kFlagRejected);
  EXPECT_EQ(server.version(0), 2U);
  EXPECT_FLOAT_EQ(server.weights(0)[0], -1.0F);
}

TEST(State, SurvivesAServer) {
  Rig before(1, kAsp);
  for (int i = 0; i < 3; ++i) {
    before.push(0);
    before.take(0);
  }
  before.send(before.client(0).about_key(MessageKind::state_get, 0, 0), {});
  const Outgoing state = before.take(0);
  ASSERT_EQ(state.header.kind, MessageKind::state);
  Rig after(1, kAsp);
  after.send(after.client(0).about_key(MessageKind::state_put, 0, state.payload.size()),
             state.payload);
  EXPECT_EQ(after.take(0).header.kind, MessageKind::ack);
  EXPECT_EQ(after.server().version(0), 3U);
  EXPECT_FLOAT_EQ(after.server().weights(0)[0], -3.0F);
}

}  // namespace
}  // namespace paceline
