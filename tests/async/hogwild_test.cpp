// SPDX-License-Identifier: Apache-2.0
#include "async/hogwild.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/base/error.h"
#include "common/core/batch_memory.h"
#include "common/data/sampler.h"
#include "common/data/sparse_dataset.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

using testing::run_thread_job;
using testing::ThreadJobResult;

Config config_for(int world) {
  Config config;
  config.sync = "hogwild";
  config.model = "softmax";
  config.world = world;
  config.train.batch = 8;
  config.train.samples = 1600;
  config.optimizer.lr = 0.01;
  config.optimizer.momentum = 0.5;
  config.bucket.size = 4096;
  config.bucket.first_size = 64;
  return config;
}

class Hogwild : public ::testing::Test {
 protected:
  std::unique_ptr<Dataset> train_ = make_synthetic(800, {28, 28, 1}, 10, 3, Split::train);
  std::unique_ptr<Dataset> test_ = make_synthetic(200, {28, 28, 1}, 10, 3, Split::test);
};

/// Plain SGD with momentum written out, over the same batches.
std::vector<float> reference(const Config& config, const Dataset& data) {
  const auto model = make_model(config.model, data.shape(), data.classes());
  const std::size_t n = model->parameter_elements();
  std::vector<float> weights(n);
  std::vector<float> gradients(n);
  std::vector<double> velocity(n);
  model->initialise(weights, config.seed);
  Sampler sampler(data.size(), config.train.samples, config.train.batch, 1, 0, config.seed);
  for (std::int64_t t = 0; t < sampler.steps(); ++t) {
    const SampleSlice slice = sampler.at(t);
    std::vector<float> inputs(slice.indices.size() * 784);
    std::vector<std::int32_t> labels(slice.indices.size());
    data.gather(slice.indices, inputs, labels);
    static_cast<void>(model->train_batch({inputs, labels, static_cast<std::int64_t>(labels.size())},
                                         weights, gradients, nullptr));
    for (std::size_t i = 0; i < n; ++i) {
      velocity[i] = config.optimizer.momentum * velocity[i] +
                    gradients[i] / static_cast<double>(labels.size());
      weights[i] = static_cast<float>(weights[i] - config.optimizer.lr * velocity[i]);
    }
  }
  return weights;
}

TEST_F(Hogwild, OneWorkerIsPlainSgd) {
  const Config config = config_for(1);
  const ThreadJobResult result = run_thread_job(config, hogwild_backend(), *train_, *test_);
  const std::vector<float> expected = reference(config, *train_);
  ASSERT_EQ(result.weights[0].size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(result.weights[0][i], expected[i], 2e-5) << i;
  }
  EXPECT_EQ(result.outcome.staleness.max, 0);
  EXPECT_EQ(result.outcome.staleness.updates, 200);
}

TEST_F(Hogwild, WorkersLearnTogetherAndEveryUpdateIsCounted) {
  const Config config = config_for(4);
  const ThreadJobResult result = run_thread_job(config, hogwild_backend(), *train_, *test_);
  for (const auto& weights : result.weights) {
    EXPECT_EQ(weights, result.weights[0]);
  }
  EXPECT_EQ(result.outcome.staleness.updates, 200);
  EXPECT_LT(result.outcome.staleness.max, 200);
  EXPECT_GT(result.outcome.evaluations.back().accuracy, 0.5);
}

class SparseHogwild : public ::testing::Test {
 protected:
  [[nodiscard]] static Config config(int world) {
    Config config = config_for(world);
    config.model = "logistic";
    config.train.samples = 8000;
    config.optimizer.lr = 2.0;
    config.optimizer.momentum = 0.0;
    return config;
  }
  std::unique_ptr<Dataset> train_ = make_sparse(4000, {500, 10}, 3, Split::train);
  std::unique_ptr<Dataset> test_ = make_sparse(500, {500, 10}, 3, Split::test);
};

/// Sparse updates one after the other, against SGD over the whole gradient arena.
TEST_F(SparseHogwild, OneWorkerIsPlainSgd) {
  const ThreadJobResult result = run_thread_job(config(1), hogwild_backend(), *train_, *test_);
  const auto model = make_model("logistic", train_->shape(), 2);
  std::vector<float> gradients(model->parameter_elements());
  std::vector<float> weights(gradients.size());
  Sampler sampler(train_->size(), 8000, 8, 1, 0, config(1).seed);
  BatchMemory memory(*train_, 8);
  for (std::int64_t t = 0; t < sampler.steps(); ++t) {
    const SampleSlice slice = sampler.at(t);
    static_cast<void>(
        model->train_batch(memory.gather(slice.indices), weights, gradients, nullptr));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= 2.0F * gradients[i] / 8.0F;
    }
  }
  ASSERT_EQ(result.weights[0].size(), weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ASSERT_NEAR(result.weights[0][i], weights[i], 1e-4) << i;
  }
  EXPECT_EQ(result.outcome.staleness.updates, 1000);
}

TEST_F(SparseHogwild, WorkersReachTheLossOfOne) {
  const double one =
      run_thread_job(config(1), hogwild_backend(), *train_, *test_).outcome.evaluations.back().loss;
  const ThreadJobResult four = run_thread_job(config(4), hogwild_backend(), *train_, *test_);
  EXPECT_LT(one, 0.5);  // ln 2 at the start
  EXPECT_NEAR(four.outcome.evaluations.back().loss, one, 0.1 * one);
  EXPECT_EQ(four.outcome.staleness.updates, 1000);
}

TEST_F(SparseHogwild, DenseRulesAreRefusedByName) {
  for (const auto& change :
       std::vector<std::function<void(Config&)>>{[](Config& c) { c.optimizer.momentum = 0.9; },
                                                 [](Config& c) { c.optimizer.weight_decay = 0.1; },
                                                 [](Config& c) { c.optimizer.name = "adam"; },
                                                 [](Config& c) { c.train.accumulate = 2; }}) {
    Config changed = config(2);
    EXPECT_NO_THROW(hogwild_backend().validate(changed));
    change(changed);
    EXPECT_THROW(hogwild_backend().validate(changed), ConfigError);
  }
}

TEST(HogwildOptions, ExactSumsAndOtherTransportsAreRefusedByName) {
  Config config = config_for(2);
  config.sync_options.exact = true;
  EXPECT_THROW(hogwild_backend().validate(config), ConfigError);
  config = config_for(2);
  config.comm.transport = "tcp";
  try {
    hogwild_backend().validate(config);
    FAIL() << "tcp was accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("comm.transport"), std::string::npos);
  }
}

}  // namespace
}  // namespace paceline
