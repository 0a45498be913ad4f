// SPDX-License-Identifier: Apache-2.0
// Updates that need the whole gradient, against plain loops in double over all elements.
#include "ps/whole_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "async/asgd_backend.h"
#include "common/base/error.h"
#include "ps/ps_backend.h"
#include "ps/wire.h"
#include "tests/ps/ps_training.h"

namespace paceline {
namespace {

using testing::drive_step;
using testing::GradientOf;
using testing::initial_weights;
using testing::make_config;
using testing::run_ps_job;
using testing::test_gradient;
using testing::test_rate;
using testing::test_samples;

constexpr std::size_t kPoisoned = 30'000;
constexpr std::int64_t kPoisonedStep = 1;
/// In one step, one element of rank 1's gradient is not finite: one key of one server sees it.
float poisoned(std::int64_t step, int rank, std::size_t i) {
  return step == kPoisonedStep && rank == 1 && i == kPoisoned
             ? std::numeric_limits<float>::quiet_NaN()
             : test_gradient(step, rank, i);
}

double squares(const std::vector<double>& values, const Range& range) {
  double sum = 0.0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    sum += values[i] * values[i];
  }
  return sum;
}

struct Reference {
  std::vector<double> weights;
  int skipped = 0;
  int clipped = 0;
};

/// Clipped momentum SGD or LARS on the mean gradient over all samples.
Reference by_hand(const BucketPlan& plan, const OptimizerSpec& spec, int world, std::int64_t steps,
                  GradientOf gradient) {
  const std::size_t n = plan.elements();
  const auto init = initial_weights(n);
  Reference result{{init.begin(), init.end()}, 0, 0};
  std::vector<double> velocity(n, 0.0);
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<double> mean(n, 0.0);
    double samples = 0.0;
    for (int rank = 0; rank < world; ++rank) {
      samples += static_cast<double>(test_samples(step, rank));
      for (std::size_t i = 0; i < n; ++i) {
        mean[i] += static_cast<double>(gradient(step, rank, i));
      }
    }
    for (double& value : mean) {
      value /= samples;
    }
    const double norm = std::sqrt(squares(mean, {0, n}));
    if (spec.skip_nonfinite && !std::isfinite(norm)) {
      ++result.skipped;
      continue;
    }
    double clip = 1.0;
    if (spec.clip_norm > 0.0F) {
      clip = std::min(1.0, static_cast<double>(spec.clip_norm) / (norm + 1e-6));
      result.clipped += clip < 1.0 ? 1 : 0;
    }
    for (const TensorRange& tensor : plan.tensors()) {
      const bool lars = spec.kind == OptimizerKind::lars;
      double ratio = 1.0;
      double decay = static_cast<double>(spec.weight_decay);
      if (lars && tensor.dimensions > 1) {
        const double w = std::sqrt(squares(result.weights, tensor.range));
        const double g = std::sqrt(squares(mean, tensor.range)) * clip;
        ratio = static_cast<double>(spec.trust) * w / (g + decay * w);
      } else if (lars) {
        decay = 0.0;
      }
      for (std::size_t i = tensor.range.begin; i < tensor.range.end; ++i) {
        velocity[i] = static_cast<double>(spec.momentum) * velocity[i] +
                      ratio * (clip * mean[i] + decay * result.weights[i]);
        result.weights[i] -= static_cast<double>(test_rate(step)) * velocity[i];
      }
    }
  }
  return result;
}

struct Trained {
  std::vector<float> weights;
  int skipped = 0;
  std::int64_t updates = 0;
};

std::vector<Trained> train(const Backend& backend, const Config& config, const OptimizerSpec& spec,
                           std::int64_t steps, GradientOf gradient) {
  const BucketPlan plan = testing::plan_with_tensors(400);
  std::vector<Trained> result(static_cast<std::size_t>(config.world));
  AbortToken abort;
  run_ps_job(backend, config, nullptr, abort, [&](Synchronizer& sync, int rank) {
    Trained& mine = result[static_cast<std::size_t>(rank)];
    Device device;
    const ReplicaView view = sync.bind(plan, device, spec, initial_weights(plan.elements()));
    const auto count = [&mine](const StepReport& report) {
      mine.skipped += report.skipped;
      mine.updates += report.staleness.updates;
    };
    for (std::int64_t step = 0; step < steps; ++step) {
      count(drive_step(sync, view, plan, step, rank, config.world, gradient));
    }
    sync.quiesce();
    mine.weights.assign(view.weights.begin(), view.weights.end());
    count(sync.commit());  // nothing pushed: the last step's report
  });
  return result;
}

void expect_near(const Reference& expected, const Trained& actual, double tolerance) {
  for (std::size_t i = 0; i < expected.weights.size(); ++i) {
    ASSERT_NEAR(actual.weights[i], expected.weights[i], tolerance) << i;
  }
}

OptimizerSpec clipping(float norm) {
  OptimizerSpec spec;
  spec.momentum = 0.9F;
  spec.weight_decay = 1e-3F;
  spec.clip_norm = norm;
  return spec;
}

TEST(WholeGradient, ClippingEqualsOneProcess) {
  for (const int servers : {1, 3}) {
    const Reference expected =
        by_hand(testing::plan_with_tensors(400), clipping(5.0F), 3, 4, test_gradient);
    ASSERT_EQ(expected.clipped, 4);
    const Reference free =
        by_hand(testing::plan_with_tensors(400), clipping(0.0F), 3, 4, test_gradient);
    EXPECT_GT(std::fabs(free.weights[7] - expected.weights[7]), 1e-3);
    for (const Trained& rank :
         train(ps_backend(), make_config(3, servers), clipping(5.0F), 4, test_gradient)) {
      expect_near(expected, rank, 1e-5);
      EXPECT_EQ(rank.updates, 4);
      EXPECT_EQ(rank.skipped, 0);
    }
  }
}

TEST(WholeGradient, AnUnreachedNormChangesNoBit) {
  const auto plain = train(ps_backend(), make_config(2, 2), clipping(0.0F), 3, test_gradient);
  const auto clipped = train(ps_backend(), make_config(2, 2), clipping(1e9F), 3, test_gradient);
  EXPECT_EQ(plain[0].weights, clipped[1].weights);
}

TEST(WholeGradient, ClipsWhatACodecBrings) {
  Config config = make_config(2, 2);
  config.compress.method = "topk";
  config.compress.density = 1.0;
  const Reference expected =
      by_hand(testing::plan_with_tensors(400), clipping(5.0F), 2, 3, test_gradient);
  expect_near(expected, train(ps_backend(), config, clipping(5.0F), 3, test_gradient)[0], 1e-5);
}

TEST(WholeGradient, LarsEqualsOneProcess) {
  OptimizerSpec spec = clipping(0.0F);
  spec.kind = OptimizerKind::lars;
  spec.trust = 0.5F;
  for (const float clip : {0.0F, 5.0F}) {
    spec.clip_norm = clip;
    const Reference expected = by_hand(testing::plan_with_tensors(400), spec, 2, 4, test_gradient);
    for (const Trained& rank : train(ps_backend(), make_config(2, 3), spec, 4, test_gradient)) {
      expect_near(expected, rank, 1e-5);
    }
  }
}

TEST(WholeGradient, ANonFiniteGradientIsSkippedByAll) {
  OptimizerSpec spec = clipping(0.0F);
  spec.skip_nonfinite = true;
  const Reference expected = by_hand(testing::plan_with_tensors(400), spec, 3, 4, poisoned);
  ASSERT_EQ(expected.skipped, 1);
  for (const bool overlap : {true, false}) {
    Config config = make_config(3, 3);
    config.sync_options.overlap = overlap;
    for (const Trained& rank : train(ps_backend(), config, spec, 4, poisoned)) {
      expect_near(expected, rank, 1e-5);
      EXPECT_EQ(rank.skipped, 1);
      EXPECT_EQ(rank.updates, 3);
    }
  }
}

TEST(WholeGradient, WithoutSkippingItReachesTheWeights) {
  const auto ranks = train(ps_backend(), make_config(2, 2), clipping(5.0F), 2, poisoned);
  EXPECT_TRUE(std::isnan(ranks[0].weights[kPoisoned]));
}

TEST(WholeGradient, AsynchronousWorkersLookFirst) {
  OptimizerSpec spec = clipping(0.0F);
  spec.skip_nonfinite = true;
  for (const char* consistency : {"asp", "ssp"}) {
    Config config = make_config(3, 2);
    config.ps.consistency = consistency;
    const auto ranks = train(ps_backend(), config, spec, 4, poisoned);
    for (int rank = 0; rank < 3; ++rank) {
      const Trained& trained = ranks[static_cast<std::size_t>(rank)];
      EXPECT_EQ(trained.skipped, rank == 1 ? 1 : 0);
      EXPECT_TRUE(std::ranges::all_of(trained.weights, [](float w) { return std::isfinite(w); }));
      EXPECT_EQ(trained.weights, ranks[0].weights);
    }
  }
  // Alone, an asynchronous worker clips as a synchronous one.
  const Reference expected =
      by_hand(testing::plan_with_tensors(400), clipping(5.0F), 1, 4, test_gradient);
  ASSERT_EQ(expected.clipped, 4);
  expect_near(expected,
              train(asgd_backend(), make_config(1, 2), clipping(5.0F), 4, test_gradient)[0], 1e-5);
}

TEST(WholeGradient, WhatIsNotPossibleIsRefused) {
  const auto refuses = [](const Backend& backend, const char* optimizer, const char* consistency) {
    Config config = make_config(2, 1);
    config.optimizer.name = optimizer;
    config.ps.consistency = consistency;
    try {
      backend.validate(config);
      ADD_FAILURE() << optimizer << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("optimizer.name=") + optimizer),
                std::string::npos)
          << error.what();
    }
  };
  refuses(ps_backend(), "lamb", "bsp");
  refuses(ps_backend(), "lars", "asp");
  refuses(asgd_backend(), "lars", "bsp");
}

TEST(StepNorms, AddsPartsOfATensorAcrossKeys) {
  BucketPlan plan(std::vector<std::size_t>{300'000});
  plan.set_tensors({{{0, 280'000}, 2, 2}, {{280'000, 300'000}, 1, 1}});
  const Partition partition(plan, 1);
  ASSERT_EQ(partition.count(), 2U);  // of 150'000 elements each
  OptimizerSpec spec;
  spec.kind = OptimizerKind::lars;
  spec.trust = 0.5F;
  StepNorms norms(spec, partition, plan.tensors());
  ASSERT_EQ(norms.parts(0), 1U);
  ASSERT_EQ(norms.parts(1), 2U);
  EXPECT_FALSE(norms.put(1, {{64.0, 9.0}, {100.0, 0.0}}, 2));
  EXPECT_THROW(norms.put(1, {{0.0, 0.0}, {0.0, 0.0}}, 2), WireError);
  EXPECT_THROW(norms.put(0, {{0.0, 0.0}}, 3), WireError);
  EXPECT_TRUE(norms.put(0, {{36.0, 16.0}}, 2));
  const auto result = norms.take();
  // |w| = 5, |g| = 10 / 2 samples.
  EXPECT_FLOAT_EQ(result.factors[0].ratios[0], 0.5F);
  EXPECT_FLOAT_EQ(result.factors[1].ratios[0], 0.5F);
  EXPECT_FLOAT_EQ(result.factors[1].ratios[1], 1.0F);
  EXPECT_FLOAT_EQ(result.factors[1].gradient, 1.0F);
}

}  // namespace
}  // namespace paceline
