// SPDX-License-Identifier: Apache-2.0
// Techniques under allreduce: what compressors make of the gradients and how many bytes they send,
// fp16 near its largest value, 1-bit Adam, skipped updates, and the order of buckets that wait.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/comm/transport.h"
#include "common/compress/error_feedback.h"
#include "ring/communication_thread.h"
#include "ring/ring_backend.h"
#include "tests/ring/ring_steps.h"

namespace paceline {
namespace {

using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::known_gradient;
using testing::known_initial;
using testing::run_backend;

constexpr int kWorld = 3;
constexpr std::size_t kElements = 1000;

ConformanceCase ring_case(int world = kWorld) {
  ConformanceCase test;
  test.config.sync = "ring";
  test.config.world = world;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {kElements};
  return test;
}

template <typename Gradient>
ConformanceOutcome run_steps(const ConformanceCase& test, Gradient gradient) {
  return testing::run_one_sample_steps(ring_backend(), test, gradient);
}

/// SGD fed by every rank's messages, decoded and added in rank order.
std::vector<float> by_hand(const ConformanceCase& test) {
  const auto codec = make_codec(test.config.compress, test.config.sync_options.wire);
  std::vector<ErrorFeedback> feedback;
  for (int r = 0; r < kWorld; ++r) {
    feedback.emplace_back(kElements, test.config.compress.error_feedback);
  }
  std::vector<float> weights(kElements);
  for (std::size_t j = 0; j < kElements; ++j) weights[j] = known_initial(j);
  std::vector<std::uint64_t> message(codec->max_bytes(kElements) / 8 + 1);
  for (int t = 0; t < test.steps; ++t) {
    std::vector<float> sum(kElements);
    Aggregate aggregate;
    for (int r = 0; r < kWorld; ++r) {
      std::vector<float> gradient(kElements);
      for (std::size_t j = 0; j < kElements; ++j) gradient[j] = known_gradient(j, r, t);
      const CodecContext context{test.config.seed, t, 0, r, 1.0F};
      const auto bytes = std::as_writable_bytes(std::span(message));
      const std::size_t n =
          feedback[static_cast<std::size_t>(r)].encode(*codec, gradient, context, bytes);
      codec->decode_add(bytes.first(n), context, sum, aggregate);
    }
    codec->finish(sum, aggregate);
    for (std::size_t j = 0; j < kElements; ++j) {
      weights[j] -= 0.125F * (sum[j] / static_cast<float>(kWorld));
    }
  }
  return weights;
}

class RingCodec : public ::testing::TestWithParam<std::string> {};

TEST_P(RingCodec, IsWhatItsMessagesSay) {
  ConformanceCase test = ring_case();
  test.config.compress.method = GetParam();
  test.config.compress.density = 0.05;
  test.config.compress.threshold = 0.1;
  const ConformanceOutcome outcome = run_steps(test, known_gradient);
  expect_no_errors(outcome);
  const std::vector<float> expected = by_hand(test);
  for (int r = 0; r < kWorld; ++r) {
    EXPECT_EQ(outcome.weights[static_cast<std::size_t>(r)], outcome.weights[0]) << "rank " << r;
  }
  for (std::size_t j = 0; j < kElements; ++j) {
    ASSERT_NEAR(outcome.weights[0][j], expected[j], 1e-4) << "element " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Gathered, RingCodec,
                         ::testing::Values("topk", "threshold", "onebit", "sign", "qsgd"),
                         [](const auto& each) { return each.param; });

/// Bytes that all ranks together send in the third step and each one after it.
std::uint64_t bytes_per_step(ConformanceCase test) {
  test.steps = 2;
  const std::uint64_t two = run_steps(test, known_gradient).bytes_sent;
  test.steps = 6;
  return (run_steps(test, known_gradient).bytes_sent - two) / 4;
}

constexpr std::size_t kSmall = 640;
constexpr std::size_t kLarge = 64000;

/// By how much a step of kLarge elements costs more than one of kSmall: the messages are as many,
/// so their framing drops out.
std::uint64_t payload_difference(ConformanceCase test) {
  test.config.ring.algorithm = "ring";
  test.buckets = {kLarge};
  const std::uint64_t large = bytes_per_step(test);
  test.buckets = {kSmall};
  return large - bytes_per_step(test);
}

TEST(RingBytes, FollowTheFormulas) {
  ConformanceCase test = ring_case();
  const auto with = [&](const std::string& method) {
    test.config.compress.method = method;
    return payload_difference(test);
  };
  const auto formula = [](auto bytes) { return bytes(kLarge) - bytes(kSmall); };
  const std::size_t summed = 2 * (kWorld - 1);                // 2(N-1)/N by each of N ranks
  const std::size_t gathered = kWorld * (kWorld - 1);         // N-1 by each
  const auto bits = [](std::size_t n) { return 8 + n / 8; };  // multiples of 64
  EXPECT_EQ(with("none"), summed * formula([](std::size_t n) { return 4 * n; }));
  EXPECT_EQ(with("fp16"), summed * formula([](std::size_t n) { return 2 * n; }));
  EXPECT_EQ(with("randomk"), summed * (4 * 640 - 4 * 7));
  EXPECT_EQ(with("topk"), gathered * (8 * 640 - 8 * 7));
  EXPECT_EQ(with("onebit"), gathered * formula(bits));
  EXPECT_EQ(with("sign"), gathered * formula(bits));
  // Levels up to 15 and a sign are 5 bits; gathered messages are padded to 8 bytes.
  EXPECT_EQ(with("qsgd"), gathered * (4 * 126 + 8 * 5000 - 4 * 2 - 8 * 50));
}

TEST(RingWire, Fp16AveragesBeforeItSums) {
  ConformanceCase test = ring_case(4);
  test.config.sync_options.wire = "fp16";
  test.steps = 1;
  test.lr = 1.0F;
  const auto large = [](std::size_t j, int, int) { return j % 2 == 0 ? 65000.0F : -65504.0F; };
  const ConformanceOutcome outcome = run_steps(test, large);
  expect_no_errors(outcome);
  for (std::size_t j = 0; j < kElements; ++j) {
    const float step = (known_initial(j) - outcome.weights[0][j]) / 0.125F;
    ASSERT_NEAR(step, large(j, 0, 0), 70.0F)
        << "the sum of four is beyond 65504, their mean is not";
  }
}

TEST(RingWire, Fp16SaysWhatDoesNotFit) {
  ConformanceCase test = ring_case(2);
  test.config.sync_options.wire = "fp16";
  test.steps = 2;
  const ConformanceOutcome outcome =
      run_steps(test, [](std::size_t, int, int) { return 140000.0F; });
  EXPECT_NE(outcome.errors[0].find("65504"), std::string::npos) << outcome.errors[0];
  EXPECT_NE(outcome.errors[0].find("bucket 0"), std::string::npos) << outcome.errors[0];
}

TEST(RingUpdate, OneBadGradientLeavesTheWholeStepOutEverywhere) {
  ConformanceCase test = ring_case();
  test.buckets = {7, 500, 3};
  test.optimizer.skip_nonfinite = true;
  test.steps = 3;
  std::atomic<int> skipped = 0;
  const auto bad_in_step_1 = [](std::size_t j, int r, int t) {
    return t == 1 && r == 2 && j == 509 ? std::numeric_limits<float>::infinity()
                                        : known_gradient(j, r, t);
  };
  const auto run = [&](auto gradient, std::vector<int> steps) {
    return run_backend(ring_backend(), test, [&](ConformanceWorker& worker) {
      for (const int t : steps) {
        const int reported = testing::one_sample_step(worker, t, kWorld, gradient).skipped;
        EXPECT_EQ(reported, t == 2 && steps.size() == 3 ? 1 : 0) << "a step later, on every rank";
        skipped += reported;
      }
      worker.synchronizer.quiesce();
      skipped += worker.synchronizer.commit().skipped;
      return StepReport{};
    });
  };
  const ConformanceOutcome with = run(bad_in_step_1, {0, 1, 2});
  expect_no_errors(with);
  EXPECT_EQ(skipped, kWorld);
  EXPECT_EQ(with.weights, run(known_gradient, {0, 2}).weights);
}

TEST(OneBitAdam, IsAdamAndThenSendsOneBit) {
  ConformanceCase test = ring_case();
  test.optimizer.kind = OptimizerKind::onebit_adam;
  test.optimizer.freeze_step = 3;
  ConformanceCase adam = test;
  adam.optimizer.kind = OptimizerKind::adam;
  test.steps = adam.steps = 3;
  EXPECT_EQ(run_steps(test, known_gradient).weights, run_steps(adam, known_gradient).weights);
  test.optimizer.freeze_step = 1;
  // Each rank's block of a third travels to that rank and back to all, with two scales each time.
  const auto block = [](std::size_t n) { return 8 + 8 * (((n + 2) / 3 + 63) / 64); };
  EXPECT_EQ(payload_difference(test), 2 * kWorld * (kWorld - 1) * (block(kLarge) - block(kSmall)));
}

TEST(OneBitAdam, ErrorFeedbackFollowsAdam) {
  ConformanceCase test = ring_case();
  test.optimizer.kind = OptimizerKind::onebit_adam;
  test.optimizer.freeze_step = 10;
  test.steps = 60;
  const auto steady = [](std::size_t j, int r, int) { return known_gradient(j, r, 0); };
  ConformanceCase adam = test;
  adam.optimizer.kind = OptimizerKind::adam;
  const auto compressed = run_steps(test, steady).weights;
  const auto full = run_steps(adam, steady).weights;
  EXPECT_EQ(compressed[1], compressed[0]);
  double difference = 0.0;
  double moved = 0.0;
  for (std::size_t j = 0; j < kElements; ++j) {
    difference += std::abs(static_cast<double>(compressed[0][j] - full[0][j]));
    moved += std::abs(static_cast<double>(full[0][j] - known_initial(j)));
  }
  EXPECT_LT(difference, 0.5 * moved);
}

/// Rank 0 has all buckets ready while the first is under way; rank 1 gets them in another order.
TEST(LaunchOrder, TheBucketNeededFirstGoesFirstOnEveryRank) {
  constexpr int kBuckets = 5;
  AbortToken abort;
  const Topology topology(2, 0, 0);
  auto workers = make_thread_communicators(2, 20'000'000'000, abort);
  std::vector<std::vector<BucketId>> seen(2);
  const auto rank_body = [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    std::atomic<bool> stop = false;
    std::atomic<bool> all_submitted = false;
    const auto transport = make_transport({}, *workers[index], topology, nullptr, abort);
    LaunchOrder order(*transport, kBuckets, std::chrono::seconds(20), stop);
    CommunicationThread thread(
        kBuckets,
        [&](BucketId b, const StepInfo&) {
          while (b == 0 && !all_submitted.load()) std::this_thread::yield();
          seen[index].push_back(b);
          return BucketCost{};
        },
        &order, stop, abort);
    for (int t = 0; t < 2; ++t) {
      all_submitted = false;
      thread.submit(0, {});
      for (BucketId b = 1; b < kBuckets; ++b) {
        if (rank == 1 && b == 2) all_submitted = true;  // the rest comes later than on rank 0
        thread.submit(b, {});
      }
      all_submitted = true;
      thread.wait_all();
    }
    workers[index]->barrier();
  };
  {
    std::jthread other([&] { rank_body(1); });
    rank_body(0);
  }
  EXPECT_EQ(seen[0], (std::vector<BucketId>{0, 4, 3, 2, 1, 0, 4, 3, 2, 1}));
  EXPECT_EQ(seen[1], seen[0]);
}

}  // namespace
}  // namespace paceline
