// SPDX-License-Identifier: Apache-2.0
// What every backend must do, whatever it is made of: a job of worker and server threads takes a
// few steps with known gradients, and the weights are compared with a reference in double.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/abort.h"
#include "common/base/error.h"
#include "common/comm/communicator.h"
#include "common/core/device.h"
#include "common/sync/backend.h"

namespace paceline::testing {

struct ConformanceCase {
  std::vector<std::size_t> buckets;  ///< elements of each; zero is allowed
  Config config;                     ///< world, sync, ...; as a validated configuration
  OptimizerSpec optimizer;           ///< SGD with or without momentum and Nesterov
  float lr = 0.125F;
  int steps = 4;
  std::vector<TensorRange> tensors;  ///< of the plan; empty: not told
};

/// Gradient of element j that rank r hands over in step t: the sum over its samples. Depends on the
/// place, so that a wrong offset shows; exact in float and in fixed point, and so are sums.
inline float known_gradient(std::size_t j, int r, int t) {
  const auto mixed = static_cast<int>((j * 31 + static_cast<std::size_t>(r * 7 + t * 3)) % 9973);
  return static_cast<float>(mixed - 4000) * 0x1p-12F;
}
/// The same in every step, never zero: for backends in which steps of ranks interleave freely.
inline float constant_gradient(std::size_t j, int r) {
  return static_cast<float>(1 + (j * 31 + static_cast<std::size_t>(r) * 7) % 9973) * 0x1p-12F;
}
/// Uneven, and rank 0 has none in step 1 (where another rank does).
inline std::int64_t known_samples(int r, int t, int world) {
  return t == 1 && r == 0 && world > 1 ? 0 : 1 + (r + t) % 3;
}
inline float known_initial(std::size_t j) {
  return static_cast<float>(static_cast<int>(j % 1009) - 500) * 0x1p-9F;
}

/// SGD in double on the mean over all samples.
class ReferenceModel {
 public:
  ReferenceModel(std::size_t elements, const OptimizerSpec& spec)
      : spec_(spec), weights_(elements), velocity_(elements) {
    for (std::size_t j = 0; j < elements; ++j) {
      weights_[j] = static_cast<double>(known_initial(j));
    }
  }
  void step(int t, int world, double lr) {
    std::int64_t samples = 0;
    for (int r = 0; r < world; ++r) {
      samples += known_samples(r, t, world);
    }
    for (std::size_t j = 0; j < weights_.size(); ++j) {
      double sum = 0.0;
      for (int r = 0; r < world; ++r) {
        sum += known_samples(r, t, world) > 0 ? static_cast<double>(known_gradient(j, r, t)) : 0.0;
      }
      const double gradient = sum / static_cast<double>(samples) +
                              static_cast<double>(spec_.weight_decay) * weights_[j];
      const double momentum = static_cast<double>(spec_.momentum);
      velocity_[j] = momentum * velocity_[j] + gradient;
      weights_[j] -= lr * (spec_.nesterov ? gradient + momentum * velocity_[j] : velocity_[j]);
    }
  }
  [[nodiscard]] const std::vector<double>& weights() const noexcept { return weights_; }

 private:
  OptimizerSpec spec_;
  std::vector<double> weights_;
  std::vector<double> velocity_;
};

/// Index of the first weight that is off by more than 1e-5, or -1.
inline std::ptrdiff_t first_off(std::span<const float> weights, std::span<const double> reference,
                                std::size_t begin, std::size_t end) {
  for (std::size_t j = begin; j < end; ++j) {
    const double difference = static_cast<double>(weights[j]) - reference[j];
    if (!(std::abs(difference) <= 1e-5 * std::max(1.0, std::abs(reference[j])))) {
      return static_cast<std::ptrdiff_t>(j);
    }
  }
  return -1;
}

/// What the ranks of a job came to.
struct ConformanceOutcome {
  std::vector<std::vector<float>> weights;  ///< after quiesce, by rank
  Staleness staleness;                      ///< of all ranks, as reported
  std::uint64_t bytes_sent = 0;             ///< of all ranks, as reported
  std::vector<std::string> errors;          ///< by rank, then by server; empty: none
};

/// One worker, between bind and its end; on its own thread.
struct ConformanceWorker {
  int rank;
  Synchronizer& synchronizer;
  ReplicaView view;
  const BucketPlan& plan;
  Communicator& workers;
  AbortToken& abort;
};

/// Runs `body` as every worker of a job under `backend`, its servers as further threads.
inline ConformanceOutcome run_backend(const Backend& backend, const ConformanceCase& test,
                                      const std::function<StepReport(ConformanceWorker&)>& body) {
  const Config& config = test.config;
  const int world = config.world;
  const int servers = backend.servers != nullptr ? backend.servers(config) : 0;
  const Topology topology(world, config.topology.ranks_per_node, servers);
  AbortToken abort;
  auto everyone = make_thread_communicators(world + servers, config.comm.timeout.count(), abort);
  auto workers = make_thread_communicators(world, config.comm.timeout.count(), abort);
  BucketPlan plan(test.buckets);
  if (!test.tensors.empty()) {
    plan.set_tensors(test.tensors);
  }
  std::vector<float> init(plan.elements());
  for (std::size_t j = 0; j < init.size(); ++j) {
    init[j] = known_initial(j);
  }
  ConformanceOutcome outcome;
  outcome.weights.resize(static_cast<std::size_t>(world));
  outcome.errors.resize(static_cast<std::size_t>(world + servers));
  std::mutex mutex;
  const auto guarded = [&](int member, auto&& run) {
    try {
      run();
    } catch (const std::exception& error) {
      const std::scoped_lock lock(mutex);
      outcome.errors[static_cast<std::size_t>(member)] = error.what();
      abort.request(std::current_exception());
    }
  };
  const auto work = [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    auto synchronizer =
        backend.make({rank, config, topology, *workers[index], *everyone[index], nullptr, abort});
    Device device;
    const ReplicaView view = synchronizer->bind(plan, device, test.optimizer, init);
    EXPECT_EQ(view.weights.size(), plan.elements());
    EXPECT_EQ(view.gradients.size(), plan.elements());
    if (!synchronizer->traits().shared_weights) {
      EXPECT_TRUE(std::equal(view.weights.begin(), view.weights.end(), init.begin()));
    }
    workers[index]->barrier();
    ConformanceWorker worker{rank, *synchronizer, view, plan, *workers[index], abort};
    const StepReport report = body(worker);
    outcome.weights[index].assign(view.weights.begin(), view.weights.end());
    {
      const std::scoped_lock lock(mutex);
      outcome.staleness.merge(report.staleness);
      outcome.bytes_sent += report.bytes_sent;
    }
    synchronizer.reset();  // servers serve until all workers are done
    everyone[index]->barrier();
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] { guarded(rank, [&] { work(rank); }); });
    }
    for (int server = 0; server < servers; ++server) {
      threads.emplace_back([&, server] {
        guarded(world + server, [&] {
          Communicator& all = *everyone[static_cast<std::size_t>(world + server)];
          backend.serve({server, config, topology, all, nullptr, abort});
          all.barrier();
        });
      });
    }
  }
  return outcome;
}

/// The calls of one step as the trainer makes them. `gradient(j, t)` is this rank's;
/// `see_weights(bucket)` is called when the bucket's weights may be read.
template <typename Gradient, typename See>
StepReport take_step(ConformanceWorker& worker, const StepInfo& info, Gradient gradient,
                     See see_weights) {
  Synchronizer& sync = worker.synchronizer;
  Stream stream;
  const Event event;
  std::vector<float> read(worker.plan.elements());
  sync.begin_step(info);
  for (BucketId b = worker.plan.count() - 1; b >= 0; --b) {
    const Range range = worker.plan[b];
    sync.parameters_needed(b, stream);
    see_weights(range);
    if (!sync.traits().shared_weights) {
      std::copy_n(worker.view.weights.begin() + static_cast<std::ptrdiff_t>(range.begin),
                  range.size(), read.begin() + static_cast<std::ptrdiff_t>(range.begin));
    }
  }
  for (BucketId b = 0; b < worker.plan.count(); ++b) {
    const Range range = worker.plan[b];
    if (!sync.traits().shared_weights) {
      const std::span<float> now = worker.view.weights.subspan(range.begin, range.size());
      EXPECT_TRUE(std::ranges::equal(
          now, std::span(read).subspan(range.begin, range.size()),
          [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); }))
          << "rank " << worker.rank << ": bucket " << b << "'s weights changed before its gradient";
    }
    for (std::size_t j = range.begin; j < range.end; ++j) {
      worker.view.gradients[j] = info.samples > 0 ? gradient(j) : 0.0F;
    }
    sync.gradient_ready(b, event);
  }
  return sync.commit();
}

inline void merge(StepReport& total, const StepReport& part) {
  EXPECT_GE(part.wait_s, 0.0);
  EXPECT_GE(part.communication_s, 0.0);
  total.bytes_sent += part.bytes_sent;
  total.staleness.merge(part.staleness);
}

inline std::string describe(const Backend& backend, const ConformanceCase& test) {
  std::string sizes;
  for (const std::size_t size : test.buckets) {
    sizes += fmt::format(" {}", size);
  }
  return fmt::format("{} world {} buckets{}", backend.name, test.config.world, sizes);
}

inline void expect_no_errors(const ConformanceOutcome& outcome) {
  for (std::size_t member = 0; member < outcome.errors.size(); ++member) {
    EXPECT_EQ(outcome.errors[member], "") << "member " << member;
  }
}

inline void expect_equal_weights(const ConformanceOutcome& outcome) {
  for (const std::vector<float>& weights : outcome.weights) {
    EXPECT_TRUE(weights == outcome.weights.front()) << "ranks hold different weights";
  }
}

/// Takes the case's steps with known gradients and quiesces between some and at the end. Every
/// weight that step t reads is one of `expected(t)`; `quiesced(t)` is called after step t's
/// quiesce.
template <typename Expected, typename Quiesced>
StepReport follow(ConformanceWorker& worker, const ConformanceCase& test, Expected expected,
                  Quiesced quiesced) {
  const int world = test.config.world;
  StepReport total;
  for (int t = 0; t < test.steps; ++t) {
    StepInfo info{t, test.lr, known_samples(worker.rank, t, world), 0};
    for (int r = 0; r < world; ++r) {
      info.global_samples += known_samples(r, t, world);
    }
    const std::vector<double>& weights = expected(t);
    merge(total,
          take_step(
              worker, info, [&](std::size_t j) { return known_gradient(j, worker.rank, t); },
              [&](Range range) {
                EXPECT_EQ(first_off(worker.view.weights, weights, range.begin, range.end), -1)
                    << "rank " << worker.rank << " reads a wrong weight in step " << t;
              }));
    if (t == 1) {
      worker.synchronizer.quiesce();
      worker.synchronizer.quiesce();
      quiesced(t);
    }
  }
  worker.synchronizer.quiesce();
  quiesced(test.steps - 1);
  return total;
}

/// Synchronous backends: every weight that a step may read is the reference's, all ranks hold the
/// same bits afterwards, quiesce may be called between steps. Returns the outcome for comparisons.
inline ConformanceOutcome check_synchronous(const Backend& backend, const ConformanceCase& test) {
  SCOPED_TRACE(describe(backend, test));
  const int world = test.config.world;
  const BucketPlan plan(test.buckets);
  std::vector<std::vector<double>> reference;  // before step t
  ReferenceModel model(plan.elements(), test.optimizer);
  for (int t = 0; t < test.steps; ++t) {
    reference.push_back(model.weights());
    model.step(t, world, static_cast<double>(test.lr));
  }
  reference.push_back(model.weights());
  ConformanceOutcome outcome = run_backend(backend, test, [&](ConformanceWorker& worker) {
    const auto expected = [&](int t) -> const std::vector<double>& {
      return reference[static_cast<std::size_t>(t)];
    };
    return follow(worker, test, expected, [](int) {});
  });
  expect_no_errors(outcome);
  expect_equal_weights(outcome);
  for (const std::vector<float>& weights : outcome.weights) {
    EXPECT_EQ(first_off(weights, reference.back(), 0, weights.size()), -1) << "after the last step";
  }
  EXPECT_EQ(outcome.staleness.max, 0) << "a synchronous update is never stale";
  return outcome;
}

/// Asynchronous and bounded-stale backends with plain SGD: whatever the order, every gradient is
/// applied once, as the mean over its worker's samples, so the sum of updates is known; all ranks
/// see the same weights after quiesce; every applied update is counted. Where weights are shared
/// without locks (Hogwild!) concurrent updates may be lost: then the weights lie between one
/// worker's and everybody's updates. `share` is the part of an update that what all ranks see moves
/// by: 1 over the world where it is a mean of replicas.
inline ConformanceOutcome check_asynchronous(const Backend& backend, ConformanceCase test,
                                             double share = 1.0) {
  SCOPED_TRACE(describe(backend, test));
  test.optimizer = OptimizerSpec{};
  const int world = test.config.world;
  bool lossy = false;
  ConformanceOutcome outcome = run_backend(backend, test, [&](ConformanceWorker& worker) {
    if (worker.rank == 0) {
      lossy = worker.synchronizer.traits().shared_weights && world > 1;
    }
    StepReport total;
    for (int t = 0; t < test.steps; ++t) {
      StepInfo info{t, test.lr, 1 + worker.rank % 3, 0};
      for (int r = 0; r < world; ++r) {
        info.global_samples += 1 + r % 3;
      }
      merge(total,
            take_step(
                worker, info, [&](std::size_t j) { return constant_gradient(j, worker.rank); },
                [](Range) {}));
    }
    worker.synchronizer.quiesce();
    return total;
  });
  expect_no_errors(outcome);
  expect_equal_weights(outcome);
  const BucketPlan plan(test.buckets);
  const double lr = share * static_cast<double>(test.lr);
  for (std::size_t j = 0; j < plan.elements(); ++j) {
    double least = 1e30;
    double all = 0.0;
    for (int r = 0; r < world; ++r) {
      const double update =
          lr * test.steps * static_cast<double>(constant_gradient(j, r)) / (1 + r % 3);
      all += update;
      least = std::min(least, update / test.steps);
    }
    const double moved =
        static_cast<double>(known_initial(j)) - static_cast<double>(outcome.weights.front()[j]);
    const double slack = 1e-5 * std::max(1.0, all);
    if (lossy ? moved > all + slack || moved < least - slack : std::abs(moved - all) > slack) {
      ADD_FAILURE() << "element " << j << " moved by " << moved << ", the updates sum to " << all;
      break;
    }
  }
  const auto updates = static_cast<std::int64_t>(world) * test.steps;
  EXPECT_LE(outcome.staleness.updates, updates);
  EXPECT_GE(outcome.staleness.updates, plan.elements() > 0 ? updates - world : 0)
      << "all but each rank's last update are acknowledged by its last commit";
  EXPECT_LE(outcome.staleness.sum, static_cast<double>(outcome.staleness.max) *
                                       static_cast<double>(outcome.staleness.updates));
  return outcome;
}

inline ConformanceOutcome check_backend(const Backend& backend, const ConformanceCase& test) {
  return backend.traits.consistency == Consistency::synchronous ? check_synchronous(backend, test)
                                                                : check_asynchronous(backend, test);
}

/// The standard sweep on top of `base` (sync options, servers, ...): world sizes up to
/// `largest_world`, bucket counts 1..17, bucket sizes 0, 1, 3, world-1, world, world+1, 1000 and
/// 1 000 003 (100 003 under ThreadSanitizer, still many pieces), plain SGD and momentum in turn.
inline std::vector<ConformanceCase> conformance_cases(const Config& base, int smallest_world = 1,
                                                      int largest_world = 8) {
#ifdef __SANITIZE_THREAD__
  constexpr std::size_t kMany = 100'003;
#else
  constexpr std::size_t kMany = 1'000'003;
#endif
  std::vector<ConformanceCase> cases;
  const auto add = [&](int world, std::vector<std::size_t> buckets, int steps) {
    ConformanceCase test;
    test.buckets = std::move(buckets);
    test.config = base;
    test.config.world = world;
    test.config.comm.timeout = std::chrono::seconds(20);
    test.steps = steps;
    if (cases.size() % 2 == 1) {
      test.optimizer.momentum = 0.5F;
      test.optimizer.nesterov = cases.size() % 4 == 3;
      test.optimizer.weight_decay = 0.0625F;
    }
    cases.push_back(std::move(test));
  };
  for (int world = smallest_world; world <= largest_world; ++world) {
#ifdef __SANITIZE_THREAD__
    if (world == 4 || world == 6 || world == 7) {
      continue;  // ten times as slow; the sizes on both sides remain
    }
#endif
    const auto n = static_cast<std::size_t>(world);
    const std::vector<std::size_t> sizes{0, 1, 3, n - 1, n, n + 1, 1000};
    add(world, sizes, 4);
    add(world, {1000}, 4);
    for (std::size_t count = n; count <= 17; count += 8) {
      std::vector<std::size_t> buckets;
      for (std::size_t b = 0; b < count; ++b) {
        buckets.push_back(sizes[(b + n) % sizes.size()]);
      }
      add(world, buckets, 3);
    }
  }
  add(std::clamp(3, smallest_world, largest_world), {5, kMany, 0, 17}, 2);
  add(std::clamp(2, smallest_world, largest_world), {kMany}, 2);
  return cases;
}

}  // namespace paceline::testing
