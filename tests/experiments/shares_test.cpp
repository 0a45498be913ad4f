// SPDX-License-Identifier: Apache-2.0
// Uneven inputs: ranks with parts of different sizes, some of which run out, give the weights of
// one process that is fed the union of their batches.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/base/error.h"
#include "common/config/validate.h"
#include "common/core/optimizer.h"
#include "common/data/sampler.h"
#include "experiments/backends.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

using testing::run_thread_job;
using testing::ThreadJobResult;

constexpr std::int64_t kTrain = 83;

Config uneven_config(const std::string& sync, std::int64_t accumulate) {
  Config config;
  config.sync = sync;
  config.model = "mlp";
  config.world = 3;
  config.data.shares = "4,1,2";
  config.train.batch = 4;
  config.train.accumulate = accumulate;
  config.train.samples = 2 * kTrain + 20;
  config.optimizer.lr = 0.02;
  config.bucket.size = 64 << 10;
  config.comm.timeout = std::chrono::seconds(20);
  return config;
}

struct Reference {
  std::vector<float> weights;
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::int64_t steps_without_rank_1 = 0;
};

/// One model, one optimizer, and at each step all ranks' samples as one batch.
Reference union_of_batches(const Config& config, const Dataset& data) {
  const std::vector<double> shares = parse_shares(config.data.shares, config.world);
  std::vector<Sampler> ranks;
  for (int rank = 0; rank < config.world; ++rank) {
    ranks.emplace_back(data.size(), config.train.samples,
                       config.train.batch * config.train.accumulate, config.world, rank,
                       config.seed, shares);
  }
  const auto model = make_model(config.model, data.shape(), data.classes());
  Reference reference;
  reference.steps = ranks[0].steps();
  reference.weights.resize(model->parameter_elements());
  model->initialise(reference.weights, config.seed);
  std::vector<float> gradient(reference.weights.size());
  Optimizer optimizer(make_optimizer_spec(config.optimizer), reference.weights.size());
  for (std::int64_t step = 0; step < reference.steps; ++step) {
    std::vector<std::uint32_t> indices;
    for (Sampler& rank : ranks) {
      const SampleSlice slice = rank.at(step);
      indices.insert(indices.end(), slice.indices.begin(), slice.indices.end());
      reference.steps_without_rank_1 += &rank == &ranks[1] && slice.indices.empty() ? 1 : 0;
    }
    std::vector<float> x(indices.size() * static_cast<std::size_t>(data.shape().elements()));
    std::vector<std::int32_t> y(indices.size());
    data.gather(indices, x, y);
    const auto samples = static_cast<std::int64_t>(indices.size());
    static_cast<void>(model->train_batch({x, y, samples}, reference.weights, gradient, nullptr));
    optimizer.apply(
        0, reference.weights, reference.weights, gradient,
        {step, static_cast<float>(config.optimizer.lr), 1.0F / static_cast<float>(samples)});
    reference.samples += samples;
  }
  return reference;
}

class Shares : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Shares, EqualOneProcessFedTheUnion) {
  const auto& [sync, accumulate] = GetParam();
  const Config config = uneven_config(sync, accumulate);
  const auto train_set = make_synthetic(kTrain, {28, 28, 1}, 10, 7, Split::train);
  const auto test_set = make_synthetic(32, {28, 28, 1}, 10, 7, Split::test);
  const Reference reference = union_of_batches(config, *train_set);
  EXPECT_GT(reference.steps_without_rank_1, 2) << "the case must have ranks that ran out";
  const ThreadJobResult result =
      run_thread_job(config, find_backend(config.sync), *train_set, *test_set);
  EXPECT_EQ(result.outcome.steps, reference.steps);
  EXPECT_EQ(result.outcome.samples, reference.samples) << "what was really seen";
  EXPECT_GE(reference.samples, config.train.samples);
  float scale = 0.0F;
  for (const float w : reference.weights) scale = std::max(scale, std::abs(w));
  for (const auto& weights : result.weights) {
    ASSERT_EQ(weights.size(), reference.weights.size());
    float largest = 0.0F;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      largest = std::max(largest, std::abs(weights[i] - reference.weights[i]));
    }
    EXPECT_LE(largest / scale, 1e-5F);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, Shares, ::testing::Combine(::testing::Values("ring", "ps"), ::testing::Values(1, 2)),
    [](const auto& tested) {
      return fmt::format("{}_accumulate{}", std::get<0>(tested.param), std::get<1>(tested.param));
    });

std::string refusal(const Config& config, std::int64_t train_samples) {
  try {
    check_against_data(config, train_samples);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(AgainstData, RefusesWhatTheDataRulesOut) {
  Config config = uneven_config("ring", 1);
  EXPECT_EQ(refusal(config, 83), "accepted");
  EXPECT_NE(refusal(config, 2).find("at least one per rank (3)"), std::string::npos);
  config.data.shares = "1000,1000,1";
  EXPECT_NE(refusal(config, 83).find("data.shares: rank 2 would get none of the 83"),
            std::string::npos);
  // 48, 12 and 23 of 83 samples, 4 at a time: 12 steps an epoch, 2 epochs, and 20 samples of 12.
  config = uneven_config("ring", 1);
  config.lr.warmup_steps = 26;
  EXPECT_EQ(refusal(config, 83), "accepted");
  config.lr.warmup_steps = 27;
  EXPECT_NE(refusal(config, 83).find("lr.warmup_steps = 27 is longer than the run, which is 26"),
            std::string::npos);
  config = uneven_config("ring", 100);
  EXPECT_NE(refusal(config, 83).find("train.accumulate = 100"), std::string::npos);
}

}  // namespace
}  // namespace paceline
