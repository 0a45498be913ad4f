// SPDX-License-Identifier: Apache-2.0
// Compressed pushes and 16-bit messages, against a computation that encodes and decodes by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "async/asgd_backend.h"
#include "common/base/error.h"
#include "common/base/half.h"
#include "ps/partition.h"
#include "ps/ps_backend.h"
#include "ps/wire.h"
#include "tests/ps/ps_training.h"

namespace paceline {
namespace {

using testing::drive_step;
using testing::initial_weights;
using testing::make_config;
using testing::momentum_sgd;
using testing::run_ps_job;
using testing::test_gradient;
using testing::test_rate;
using testing::test_samples;
using testing::train;

using Values = std::vector<double>;

/// What a receiver of one worker's message of `sum` (over `samples`) gets, by hand.
using Decode = std::function<Values(const Values& sum, std::int64_t samples)>;

Values rounded(const Values& sum, std::int64_t samples, float (*round)(float)) {
  Values out;
  const float scale = 1.0F / static_cast<float>(samples);
  for (const double value : sum) {
    out.push_back(static_cast<double>(round(static_cast<float>(value) * scale) / scale));
  }
  return out;
}

Values half(const Values& sum, std::int64_t samples) {
  return rounded(sum, samples, [](float value) { return from_half(to_half(value)); });
}
Values bfloat(const Values& sum, std::int64_t samples) {
  return rounded(sum, samples, [](float value) { return from_bfloat(to_bfloat(value)); });
}

Values topk(const Values& sum, std::int64_t /*samples*/) {
  std::vector<std::size_t> order(sum.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::fabs(sum[a]) > std::fabs(sum[b]);
  });
  Values out(sum.size(), 0.0);
  for (std::size_t i = 0; i < (sum.size() + 9) / 10; ++i) {  // density 0.1
    out[order[i]] = sum[order[i]];
  }
  return out;
}

Values onebit(const Values& sum, std::int64_t /*samples*/) {
  double total[2] = {0.0, 0.0};
  double count[2] = {0.0, 0.0};
  for (const double value : sum) {
    total[value < 0.0 ? 1 : 0] += value;
    count[value < 0.0 ? 1 : 0] += 1.0;
  }
  Values out;
  for (const double value : sum) {
    const int side = value < 0.0 ? 1 : 0;
    out.push_back(total[side] / count[side]);
  }
  return out;
}

Values sign(const Values& sum, std::int64_t /*samples*/) {
  double magnitude = 0.0;
  for (const double value : sum) {
    magnitude += std::fabs(value) / static_cast<double>(sum.size());
  }
  Values out;
  for (const double value : sum) {
    out.push_back(value < 0.0 ? -magnitude : magnitude);
  }
  return out;
}

/// Sums of what the workers sent; of signs, the majority's.
Values combined(const std::vector<Values>& parts, bool majority) {
  Values sum(parts[0].size(), 0.0);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double votes = 0.0;
    double magnitude = 0.0;
    for (const Values& part : parts) {
      sum[i] += part[i];
      votes += part[i] < 0.0 ? -1.0 : 1.0;
      magnitude += std::fabs(part[i]);
    }
    if (majority) {
      sum[i] = votes == 0.0 ? 0.0 : std::copysign(magnitude, votes);
    }
  }
  return sum;
}

struct Case {
  const char* method;
  const char* wire;
  bool error_feedback;
  Decode decode;
};

/// Weights after `steps` BSP steps of momentum SGD, key by key.
std::vector<float> by_hand(const Case& test, const Partition& partition, std::size_t elements,
                           int world, std::int64_t steps) {
  std::vector<float> weights = initial_weights(elements);
  Values velocity(elements, 0.0);
  std::vector<Values> residual(static_cast<std::size_t>(world), Values(elements, 0.0));
  const OptimizerSpec spec = momentum_sgd();
  for (std::int64_t step = 0; step < steps; ++step) {
    for (const KeyRange& key : partition.keys()) {
      std::vector<Values> parts;
      double samples = 0.0;
      for (int r = 0; r < world; ++r) {
        Values& left = residual[static_cast<std::size_t>(r)];
        Values sum;
        for (std::size_t i = key.arena.begin; i < key.arena.end; ++i) {
          sum.push_back(static_cast<double>(test_gradient(step, r, i)) + left[i]);
        }
        parts.push_back(test.decode(sum, test_samples(step, r)));
        for (std::size_t j = 0; test.error_feedback && j < sum.size(); ++j) {
          left[key.arena.begin + j] = sum[j] - parts.back()[j];
        }
        samples += static_cast<double>(test_samples(step, r));
      }
      const Values sum = combined(parts, std::string_view(test.method) == "sign");
      for (std::size_t j = 0; j < sum.size(); ++j) {
        const std::size_t i = key.arena.begin + j;
        velocity[i] = static_cast<double>(spec.momentum) * velocity[i] + sum[j] / samples +
                      static_cast<double>(spec.weight_decay) * static_cast<double>(weights[i]);
        weights[i] -= static_cast<float>(static_cast<double>(test_rate(step)) * velocity[i]);
      }
    }
  }
  return weights;
}

Config with_codec(const Case& test, int world, int servers) {
  Config config = make_config(world, servers);
  config.compress.method = test.method;
  config.compress.density = 0.1;
  config.compress.error_feedback = test.error_feedback;
  config.sync_options.wire = test.wire;
  return config;
}

const std::vector<std::size_t> kSmall{5, 0, 20'001, 1, 40'000};

TEST(PsCodec, TrainsAsComputedByHand) {
  const BucketPlan plan(kSmall);
  const std::vector<Case> cases{
      {"fp16", "fp32", true, half},  {"bf16", "fp32", false, bfloat},  {"topk", "fp32", true, topk},
      {"topk", "fp32", false, topk}, {"onebit", "fp32", true, onebit}, {"sign", "fp32", true, sign},
      {"none", "fp16", false, half}, {"none", "bf16", false, bfloat},
  };
  for (const Case& test : cases) {
    const auto expected = by_hand(test, Partition(plan, 2), plan.elements(), 3, 3);
    for (const auto& weights :
         train(ps_backend(), with_codec(test, 3, 2), plan, momentum_sgd(), 3)) {
      double worst = 0.0;
      std::size_t off = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double error =
            std::fabs(static_cast<double>(weights[i]) - static_cast<double>(expected[i]));
        worst = std::max(worst, error);
        off += error > 1e-5 ? 1U : 0U;
      }
      // Where fp32 and double round a residual differently, a tie or a vote may fall otherwise.
      EXPECT_LE(off, plan.elements() / 2000) << test.method << " " << test.wire << ", " << worst;
    }
  }
}

TEST(PsCodec, BytesFollowTheFormulasAndMemoryIsCounted) {
  const BucketPlan plan(kSmall);
  const Partition partition(plan, 2);
  struct Want {
    const char* method;
    const char* wire;
    std::function<std::size_t(std::size_t)> bytes;
  };
  const auto words = [](std::size_t n) { return 8 + 8 * ((n + 63) / 64); };
  const std::vector<Want> wants{
      {"topk", "fp32", [](std::size_t n) { return 8 * ((n + 9) / 10); }},
      {"randomk", "fp32", [](std::size_t n) { return 4 * ((n + 9) / 10); }},
      {"onebit", "fp32", words},
      {"sign", "fp32", words},
      {"qsgd", "fp32",
       [](std::size_t n) { return 4 * ((n + 511) / 512) + 8 * ((n * 5 + 63) / 64); }},
      {"fp16", "fp32", [](std::size_t n) { return 2 * n; }},
      {"none", "bf16", [](std::size_t n) { return 2 * n; }},
  };
  for (const Want& want : wants) {
    std::size_t payload = 0;
    for (const KeyRange& key : partition.keys()) {
      payload += want.bytes(key.elements());
    }
    const Case test{want.method, want.wire, true, {}};
    AbortToken abort;
    run_ps_job(
        ps_backend(), with_codec(test, 2, 2), nullptr, abort, [&](Synchronizer& sync, int rank) {
          Device device;
          const ReplicaView view =
              sync.bind(plan, device, momentum_sgd(), initial_weights(plan.elements()));
          std::uint64_t bytes = drive_step(sync, view, plan, 0, rank, 2).bytes_sent;
          Stream stream;
          for (BucketId b = 0; b < plan.count(); ++b) {
            sync.parameters_needed(b, stream);
          }
          bytes += sync.commit().bytes_sent;
          EXPECT_EQ(bytes, payload + partition.count() * kHeaderBytes) << want.method;
          EXPECT_GE(sync.memory().staging, payload);
          EXPECT_EQ(sync.memory().residual,
                    std::string_view(want.method) == "none" ? 0U : plan.elements() * sizeof(float));
        });
  }
}

TEST(PsCodec, SixteenBitAnswersAndExactWeightsWhenAsked) {
  const BucketPlan plan(kSmall);
  const Case test{"none", "fp16", false, half};
  AbortToken abort;
  run_ps_job(ps_backend(), with_codec(test, 2, 2), nullptr, abort,
             [&](Synchronizer& sync, int rank) {
               Device device;
               Stream stream;
               const ReplicaView view =
                   sync.bind(plan, device, momentum_sgd(), initial_weights(plan.elements()));
               const auto on_grid = [&] {
                 return std::all_of(view.weights.begin(), view.weights.end(),
                                    [](float value) { return value == from_half(to_half(value)); });
               };
               EXPECT_FALSE(on_grid()) << "bind gives the first weights as they are";
               drive_step(sync, view, plan, 0, rank, 2);
               for (BucketId b = 0; b < plan.count(); ++b) {
                 sync.parameters_needed(b, stream);
               }
               EXPECT_TRUE(on_grid());
               const std::vector<float> read(view.weights.begin(), view.weights.end());
               sync.quiesce();
               EXPECT_FALSE(on_grid()) << "the servers' own weights";
               sync.begin_step({1, 0.1F, 1, 2});
               EXPECT_TRUE(std::ranges::equal(read, view.weights))
                   << "an evaluation does not alter training";
             });
}

/// Descends on |w − target|²/2 with the real gradient; returns the distance left, in parts of the
/// first one.
double distance_left(const Backend& backend, Config config, std::int64_t steps) {
  const BucketPlan plan(std::vector<std::size_t>{300, 1700});
  std::vector<double> left(static_cast<std::size_t>(config.world));
  AbortToken abort;
  run_ps_job(backend, config, nullptr, abort, [&](Synchronizer& sync, int rank) {
    Device device;
    Stream stream;
    const Event done;
    const std::vector<float> init(plan.elements(), 0.0F);
    const ReplicaView view = sync.bind(plan, device, {}, init);
    const auto target = [](std::size_t i) { return static_cast<float>(i % 17) - 8.0F; };
    for (std::int64_t step = 0; step < steps; ++step) {
      sync.begin_step({step, 0.02F, 2, 2 * config.world});
      for (BucketId b = plan.count(); b-- > 0;) {
        sync.parameters_needed(b, stream);
      }
      for (BucketId b = 0; b < plan.count(); ++b) {
        for (std::size_t i = plan[b].begin; i < plan[b].end; ++i) {
          view.gradients[i] = 2.0F * (view.weights[i] - target(i));
        }
        sync.gradient_ready(b, done);
      }
      static_cast<void>(sync.commit());
    }
    sync.quiesce();
    double square = 0.0;
    double first = 0.0;
    for (std::size_t i = 0; i < plan.elements(); ++i) {
      square += std::pow(static_cast<double>(view.weights[i] - target(i)), 2);
      first += std::pow(static_cast<double>(target(i)), 2);
    }
    left[static_cast<std::size_t>(rank)] = std::sqrt(square / first);
  });
  return *std::max_element(left.begin(), left.end());
}

TEST(PsCodec, ErrorFeedbackTrainsUnderEveryConsistency) {
  for (const char* method : {"topk", "randomk", "onebit", "qsgd"}) {
    for (const char* consistency : {"bsp", "ssp", "asp"}) {
      Config config = with_codec({method, "fp32", true, {}}, 2, 2);
      config.ps.consistency = consistency;
      EXPECT_LT(distance_left(ps_backend(), config, 400), 0.2) << method << " " << consistency;
    }
  }
  EXPECT_LT(distance_left(asgd_backend(), with_codec({"topk", "fp32", true, {}}, 2, 1), 400), 0.2);
}

TEST(PsCodec, AWorkerWithAnotherCodecIsRefused) {
  const BucketPlan plan(kSmall);
  const Config config = make_config(2, 1);
  Config other = config;
  other.compress.method = "topk";
  const Topology topology(2, 0, 1);
  AbortToken abort;
  auto everyone = make_thread_communicators(3, config.comm.timeout.count(), abort);
  auto workers = make_thread_communicators(2, config.comm.timeout.count(), abort);
  std::string reason;
  std::thread server([&] {
    try {
      ps_backend().serve({0, config, topology, *everyone[2], nullptr, abort});
    } catch (const Error&) {
      return;
    }
  });
  std::thread first([&] {
    try {
      const auto sync =
          ps_backend().make({0, config, topology, *workers[0], *everyone[0], nullptr, abort});
      Device device;
      sync->bind(plan, device, {}, initial_weights(plan.elements()));
    } catch (const Error&) {
      return;
    }
  });
  try {
    const auto sync =
        ps_backend().make({1, other, topology, *workers[1], *everyone[1], nullptr, abort});
    Device device;
    sync->bind(plan, device, {}, initial_weights(plan.elements()));
  } catch (const Error& error) {
    reason = error.what();
    abort.request(std::current_exception());
  }
  first.join();
  server.join();
  EXPECT_NE(reason.find("compress.method is topk, here none"), std::string::npos) << reason;
}

TEST(PsCodec, RefusesWhatItCannotDo) {
  const auto refuses = [](const std::string& what, const std::function<void(Config&)>& change) {
    Config config = make_config(2, 1);
    change(config);
    try {
      ps_backend().validate(config);
      ADD_FAILURE() << what << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refuses("compress.method=powersgd", [](Config& c) { c.compress.method = "powersgd"; });
  refuses("optimizer.name=onebit_adam", [](Config& c) { c.optimizer.name = "onebit_adam"; });
  refuses("sync.exact=true", [](Config& c) {
    c.sync_options.exact = true;
    c.compress.method = "topk";
  });
  refuses("sync.exact=true", [](Config& c) {
    c.sync_options.exact = true;
    c.sync_options.wire = "fp16";
  });
  refuses("sync.wire=fp16", [](Config& c) {
    c.sync_options.wire = "fp16";
    c.compress.method = "topk";
  });
}

}  // namespace
}  // namespace paceline
