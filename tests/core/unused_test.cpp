// SPDX-License-Identifier: Apache-2.0
// Parameters that some or all ranks do not use in a step: residual blocks that are left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/base/error.h"
#include "common/core/optimizer.h"
#include "common/data/sampler.h"
#include "experiments/backends.h"
#include "tests/core/inputs.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

constexpr int kWorld = 3;
constexpr int kBatch = 4;
constexpr int kSteps = 10;

/// The last step has one sample, so two ranks take part in it without any.
Config job_config() {
  Config config;
  config.sync = "ring";
  config.model = "resmlp";
  config.world = kWorld;
  config.train.batch = kBatch;
  config.train.samples = (kSteps - 1) * kWorld * kBatch + 1;
  config.train.drop_path = 0.5;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.0;
  config.bucket.size = 1;  // one bucket per tensor
  config.bucket.first_size = 1;
  config.comm.timeout = std::chrono::seconds(20);
  return config;
}

struct Sets {
  std::unique_ptr<Dataset> train = make_synthetic(200, {8, 8, 1}, 10, 7, Split::train);
  std::unique_ptr<Dataset> test = make_synthetic(32, {8, 8, 1}, 10, 7, Split::test);
};

testing::ThreadJobResult run(const Config& config) {
  const Sets sets;
  testing::ThreadJobResult result =
      testing::run_thread_job(config, find_backend(config.sync), *sets.train, *sets.test);
  for (const auto& weights : result.weights) {
    EXPECT_EQ(weights, result.weights[0]) << "ranks disagree";
  }
  return result;
}

class UsedLayers final : public LayerHooks {
 public:
  void before_forward(int layer) override { EXPECT_TRUE(forward.insert(layer).second); }
  void after_forward(int layer) override { EXPECT_TRUE(forward.contains(layer)); }
  void after_backward(int layer) override { EXPECT_TRUE(backward.insert(layer).second); }
  std::set<int> forward;
  std::set<int> backward;
};

/// The same training in one loop: gradients of all ranks are added, those of left-out blocks as 0.
struct Reference {
  std::vector<float> weights;
  int unused_on_some = 0;  ///< (step, layer) pairs
  int unused_on_all = 0;
};

Reference reference_run(const Config& config) {
  const Sets sets;
  std::vector<std::unique_ptr<Model>> models;
  std::vector<Sampler> samplers;
  for (int rank = 0; rank < kWorld; ++rank) {
    models.push_back(make_model("resmlp", {8, 8, 1}, 10, model_options(config, rank, nullptr)));
    samplers.emplace_back(sets.train->size(), config.train.samples, kBatch, kWorld, rank,
                          config.seed);
  }
  Reference result;
  result.weights.resize(models[0]->parameter_elements());
  models[0]->initialise(result.weights, config.seed);
  Optimizer optimizer({}, result.weights.size());
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> sum(result.weights.size());
    std::vector<int> users(5);
    std::int64_t global = 0;
    for (std::size_t rank = 0; rank < kWorld; ++rank) {
      const SampleSlice slice = samplers[rank].at(step);
      const std::size_t n = slice.indices.size();
      std::vector<float> x(n * 64);
      std::vector<std::int32_t> y(n);
      sets.train->gather(slice.indices, x, y);
      std::vector<float> gradient(sum.size());
      UsedLayers used;
      models[rank]->begin_step(step);
      static_cast<void>(models[rank]->train_batch({x, y, static_cast<std::int64_t>(n)},
                                                  result.weights, gradient, &used));
      EXPECT_EQ(used.forward, used.backward);
      EXPECT_TRUE(n > 0 || used.backward.size() == 5U) << "no samples leave nothing unused";
      for (const int layer : used.backward) {
        ++users[static_cast<std::size_t>(layer)];
      }
      std::ranges::transform(sum, gradient, sum.begin(), std::plus<>());
      global = slice.global_samples;
    }
    for (const int count : users) {
      result.unused_on_some += count > 0 && count < kWorld ? 1 : 0;
      result.unused_on_all += count == 0 ? 1 : 0;
    }
    optimizer.apply(
        0, result.weights, result.weights, sum,
        {step, static_cast<float>(config.optimizer.lr), 1.0F / static_cast<float>(global)});
  }
  return result;
}

TEST(UnusedParameters, CountAsZeroOnSomeRanksAndOnAll) {
  const Config config = job_config();
  const Reference reference = reference_run(config);
  EXPECT_GT(reference.unused_on_some, 5);
  EXPECT_GT(reference.unused_on_all, 0);
  const auto expected = test::widen(reference.weights);
  EXPECT_LE(test::relative_error(run(config).weights[0], expected), 1e-5) << "a bucket per tensor";
  Config shared = config;
  shared.bucket.size = std::size_t{25} << 20;
  shared.bucket.first_size = shared.bucket.size;
  EXPECT_LE(test::relative_error(run(shared).weights[0], expected), 1e-5) << "one bucket";
}

TEST(UnusedParameters, MicroBatchesShareTheStepsChoice) {
  const Config config = job_config();
  const auto expected = test::widen(reference_run(config).weights);
  Config accumulating = config;
  accumulating.train.batch = 1;
  accumulating.train.accumulate = kBatch;
  EXPECT_LE(test::relative_error(run(accumulating).weights[0], expected), 1e-5);
}

TEST(UnusedParameters, WithoutTheSearchAreNamed) {
  Config config = job_config();
  config.train.drop_path = 1.0;
  config.sync_options.find_unused = false;
  try {
    run(config);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find("rank "), 0U) << what;
    EXPECT_NE(what.find(": block3.weight got no gradient in step 0; set sync.find_unused=true"),
              std::string::npos)
        << what;
  }
}

TEST(UnusedParameters, WithoutAnyTheSearchMayBeOff) {
  Config config = job_config();
  config.train.drop_path = 0.0;
  const auto with = run(config);
  config.sync_options.find_unused = false;
  EXPECT_EQ(run(config).weights[0], with.weights[0]);
}

TEST(StochasticDepth, EvaluationScalesEveryBranch) {
  // With p = 1 no branch is left in evaluation: the model is fc1 and head alone.
  ModelOptions options;
  const auto x = test::values(1, 3 * 64);
  const auto y = test::labels(2, 3, 10);
  const auto loss = [&](double drop_path, bool blocks) {
    options.drop_path = drop_path;
    const auto model = make_model("resmlp", {8, 8, 1}, 10, options);
    std::vector<float> weights(model->parameter_elements());
    model->initialise(weights, 1);
    for (const Parameter& parameter : model->parameters()) {
      if (!blocks && parameter.name.starts_with("block")) {
        std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(parameter.range.begin),
                    parameter.range.size(), 0.0F);
      }
    }
    return model->evaluate_batch({x, y, 3}, weights).loss_sum;
  };
  EXPECT_EQ(loss(1.0, true), loss(0.0, false));
  EXPECT_NE(loss(0.5, true), loss(0.0, true));
  EXPECT_NE(loss(0.5, true), loss(1.0, true));
}

TEST(StochasticDepth, LeavesBlocksOutWithItsChance) {
  ModelOptions options;
  options.drop_path = 0.25;
  options.rank = 2;
  const auto model = make_model("resmlp", {1, 1, 2}, 2, options);
  std::vector<float> weights(model->parameter_elements());
  std::vector<float> gradients(weights.size());
  model->initialise(weights, 1);
  const std::vector<float> x{1.0F, 2.0F};
  const std::vector<std::int32_t> y{1};
  int left_out = 0;
  constexpr int kTrials = 400;
  for (int step = 0; step < kTrials; ++step) {
    UsedLayers used;
    model->begin_step(step);
    static_cast<void>(model->train_batch({x, y, 1}, weights, gradients, &used));
    EXPECT_TRUE(used.backward.contains(0) && used.backward.contains(4));
    left_out += 5 - static_cast<int>(used.backward.size());
  }
  EXPECT_NEAR(left_out, 0.25 * 3 * kTrials, 5 * std::sqrt(0.25 * 0.75 * 3 * kTrials));
}

}  // namespace
}  // namespace paceline
