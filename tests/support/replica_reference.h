// SPDX-License-Identifier: Apache-2.0
// Local SGD, DiLoCo, elastic averaging and gossip as plain loops over N replicas in double, and the
// conformance check of backends against them.
#pragma once

#include "ring/gossip_matching.h"
#include "tests/support/backend_conformance.h"

namespace paceline::testing {

/// Under config.sync = local, easgd or gossip, with SGD as ConformanceCase says; gradients are
/// given, samples are known_samples().
class ReplicaReference {
 public:
  using Weights = std::vector<double>;

  explicit ReplicaReference(const ConformanceCase& test)
      : test_(test),
        world_(test.config.world),
        initial_(BucketPlan(test.buckets).elements()),
        samples_(static_cast<std::size_t>(world_)) {
    for (std::size_t j = 0; j < initial_.size(); ++j) {
      initial_[j] = static_cast<double>(known_initial(j));
    }
    center_ = initial_;
    outer_velocity_.assign(initial_.size(), 0.0);
    x_.assign(samples_.size(), initial_);
    velocity_.assign(samples_.size(), Weights(initial_.size()));
  }

  void step(int t) {
    if (test_.config.sync == "gossip") {
      mix_pairs(t);
    }
    for (int r = 0; r < world_; ++r) {
      if (known_samples(r, t, world_) > 0) {
        update(r, t);
      }
      samples_[static_cast<std::size_t>(r)] += static_cast<double>(known_samples(r, t, world_));
    }
    ++age_;
    if (test_.config.sync == "local" && age_ == test_.config.local.steps) {
      average();
      age_ = 0;
    } else if (test_.config.sync == "easgd" && age_ == test_.config.easgd.period) {
      pull();
      age_ = 0;
    }
  }

  [[nodiscard]] const Weights& weights(int rank) const { return x_.at(std::size_t(rank)); }

  /// What all ranks evaluate.
  [[nodiscard]] Weights shown() const {
    if (test_.config.sync == "easgd") {
      return center_;
    }
    return mean(test_.config.sync == "local" ? samples_ : Weights(x_.size(), 1.0));
  }

 private:
  void update(int r, int t) {
    const OptimizerSpec& spec = test_.optimizer;
    const double momentum = static_cast<double>(spec.momentum);
    Weights& x = x_[static_cast<std::size_t>(r)];
    Weights& v = velocity_[static_cast<std::size_t>(r)];
    const auto n = static_cast<double>(known_samples(r, t, world_));
    for (std::size_t j = 0; j < x.size(); ++j) {
      const double g = static_cast<double>(known_gradient(j, r, t)) / n +
                       static_cast<double>(spec.weight_decay) * x[j];
      v[j] = momentum * v[j] + g;
      x[j] -= static_cast<double>(test_.lr) * (spec.nesterov ? g + momentum * v[j] : v[j]);
    }
  }

  [[nodiscard]] Weights mean(const Weights& shares) const {
    double total = 0.0;
    for (const double share : shares) total += share;
    if (total == 0.0) {
      return x_.front();
    }
    Weights sum(initial_.size());
    for (std::size_t r = 0; r < x_.size(); ++r) {
      for (std::size_t j = 0; j < sum.size(); ++j) {
        sum[j] += shares[r] / total * x_[r][j];
      }
    }
    return sum;
  }

  void average() {
    Weights next = mean(samples_);
    if (test_.config.local.outer == "nesterov") {
      const double m = test_.config.local.outer_momentum;
      for (std::size_t j = 0; j < next.size(); ++j) {
        const double drift = center_[j] - next[j];
        outer_velocity_[j] = m * outer_velocity_[j] + drift;
        center_[j] -= test_.config.local.outer_lr * (drift + m * outer_velocity_[j]);
      }
      next = center_;
    }
    x_.assign(x_.size(), next);
    samples_.assign(samples_.size(), 0.0);
  }

  void pull() {
    const double set = test_.config.easgd.alpha;
    const double alpha = set > 0.0 ? set : 0.9 / world_;
    const Weights center = center_;
    const Weights together = mean(Weights(x_.size(), 1.0));
    for (std::size_t j = 0; j < center.size(); ++j) {
      for (Weights& x : x_) {
        x[j] -= alpha * (x[j] - center[j]);
      }
      center_[j] = (1.0 - alpha * world_) * center[j] + alpha * world_ * together[j];
    }
  }

  void mix_pairs(int t) {
    const std::vector<Weights> before = x_;
    const GossipGraph graph =
        test_.config.gossip.graph == "ring" ? GossipGraph::ring : GossipGraph::random;
    for (int r = 0; r < world_; ++r) {
      const auto peer = gossip_partner(graph, test_.config.seed, t, r, world_);
      for (std::size_t j = 0; peer && j < initial_.size(); ++j) {
        x_[std::size_t(r)][j] = (before[std::size_t(r)][j] + before[std::size_t(*peer)][j]) / 2.0;
      }
    }
  }

  const ConformanceCase& test_;
  int world_;
  Weights initial_;
  Weights center_;  ///< EASGD's, DiLoCo's anchor
  Weights outer_velocity_;
  std::vector<Weights> x_;
  std::vector<Weights> velocity_;
  Weights samples_;  ///< by rank, since the last average
  std::int64_t age_ = 0;
};

/// Every weight that a rank may read is its replica's in the reference; quiesce() shows the same
/// model on all ranks, the reference's, and does not alter training; every update is counted.
inline ConformanceOutcome check_replicas(const Backend& backend, const ConformanceCase& test) {
  SCOPED_TRACE(describe(backend, test));
  const int world = test.config.world;
  std::vector<std::vector<std::vector<double>>> before;  // by step and rank
  std::vector<std::vector<double>> shown;                // after step t
  ReplicaReference reference(test);
  std::int64_t updates = 0;
  for (int t = 0; t < test.steps; ++t) {
    before.emplace_back();
    for (int r = 0; r < world; ++r) {
      before.back().push_back(reference.weights(r));
      updates += known_samples(r, t, world) > 0 ? 1 : 0;
    }
    reference.step(t);
    shown.push_back(reference.shown());
  }
  const auto expect_shown = [&](const ConformanceWorker& worker, int t) {
    EXPECT_EQ(first_off(worker.view.weights, shown[std::size_t(t)], 0, worker.plan.elements()), -1)
        << "rank " << worker.rank << " shows a wrong model after step " << t;
  };
  ConformanceOutcome outcome = run_backend(backend, test, [&](ConformanceWorker& worker) {
    worker.synchronizer.quiesce();
    const auto expected = [&](int t) -> const std::vector<double>& {
      return before[std::size_t(t)][std::size_t(worker.rank)];
    };
    return follow(worker, test, expected, [&](int t) { expect_shown(worker, t); });
  });
  expect_no_errors(outcome);
  expect_equal_weights(outcome);
  EXPECT_EQ(outcome.staleness.updates, updates);
  return outcome;
}

/// The backends that this header knows.
inline bool has_replicas(std::string_view sync) {
  return sync == "local" || sync == "easgd" || sync == "gossip";
}

}  // namespace paceline::testing
