// SPDX-License-Identifier: Apache-2.0
#include "ring/local_sgd.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "common/base/buffer.h"
#include "common/base/error.h"
#include "ring/averaging_synchronizer.h"

namespace paceline {

namespace {

/// This worker's part of all samples since the last mix.
float sample_share(const StepInfo& step) noexcept {
  return static_cast<float>(static_cast<double>(step.samples) /
                            static_cast<double>(step.global_samples));
}

void scale_into(std::span<float> out, std::span<const float> values, float factor) noexcept {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = factor * values[i];
  }
}

class SampleAverage : public Mixing {
 public:
  void bind(Replica& replica, std::span<const float> /*init*/) override { replica_ = &replica; }

  RunTimes mix(BucketId b, const StepInfo& step) override {
    if (step.global_samples == 0) {
      return no_exchange();  // nobody moved
    }
    const std::span<float> sum = replica_->gradient(b);
    scale_into(sum, replica_->weights(b), sample_share(step));
    const RunTimes times = replica_->sum(sum);
    std::ranges::copy(sum, replica_->weights(b).begin());
    return times;
  }

  RunTimes show(BucketId b, const StepInfo& step) override {
    if (step.global_samples == 0) {
      return no_exchange();
    }
    const std::span<float> weights = replica_->weights(b);
    scale_into(weights, weights, sample_share(step));
    return replica_->sum(weights);
  }

  void count_memory(MemoryUse& /*use*/) const noexcept override {}
  void save(StateWriter& /*writer*/) const override {}
  void load(StateReader& /*reader*/) override {}

 protected:
  [[nodiscard]] Replica& replica() const noexcept { return *replica_; }

 private:
  Replica* replica_ = nullptr;
};

/// DiLoCo's outer step: v <- m·v + d, anchor <- anchor - lr·(d + m·v), where d is the average of
/// anchor - weights. Shows the average of the weights as well.
class OuterNesterov final : public SampleAverage {
 public:
  explicit OuterNesterov(const LocalConfig& config)
      : lr_(static_cast<float>(config.outer_lr)),
        momentum_(static_cast<float>(config.outer_momentum)) {}

  void bind(Replica& bound, std::span<const float> init) override {
    SampleAverage::bind(bound, init);
    anchor_ = Buffer(init.size_bytes());
    velocity_ = Buffer(init.size_bytes());
    std::ranges::copy(init, anchor_.as<float>().begin());
  }

  RunTimes mix(BucketId b, const StepInfo& step) override {
    if (step.global_samples == 0) {
      return no_exchange();
    }
    const Range range = replica().plan()[b];
    const std::span<float> anchor = anchor_.as<float>().subspan(range.begin, range.size());
    const std::span<float> velocity = velocity_.as<float>().subspan(range.begin, range.size());
    const std::span<float> weights = replica().weights(b);
    const std::span<float> drift = replica().gradient(b);
    const float share = sample_share(step);
    for (std::size_t i = 0; i < drift.size(); ++i) {
      drift[i] = share * (anchor[i] - weights[i]);
    }
    const RunTimes times = replica().sum(drift);
    for (std::size_t i = 0; i < drift.size(); ++i) {
      velocity[i] = momentum_ * velocity[i] + drift[i];
      anchor[i] -= lr_ * (drift[i] + momentum_ * velocity[i]);
      weights[i] = anchor[i];
    }
    return times;
  }

  void count_memory(MemoryUse& use) const noexcept override {
    use.staging += anchor_.size();
    use.optimizer += velocity_.size();
  }
  void save(StateWriter& writer) const override {
    writer.put("outer.anchor", anchor_.as<float>());
    writer.put("outer.velocity", velocity_.as<float>());
  }
  void load(StateReader& reader) override {
    reader.get("outer.anchor", anchor_.as<float>());
    reader.get("outer.velocity", velocity_.as<float>());
  }

 private:
  float lr_;
  float momentum_;
  Buffer anchor_;
  Buffer velocity_;
};

class Elastic final : public Mixing {
 public:
  explicit Elastic(double alpha, int world)
      : alpha_(static_cast<float>(alpha)),
        beta_(static_cast<float>(alpha * world)),
        one_rank_(1.0F / static_cast<float>(world)) {}

  void bind(Replica& bound, std::span<const float> init) override {
    replica_ = &bound;
    center_ = Buffer(init.size_bytes());
    std::ranges::copy(init, center_.as<float>().begin());
  }

  RunTimes mix(BucketId b, const StepInfo& /*step*/) override {
    const std::span<float> center = center_of(b);
    const std::span<float> x = replica_->weights(b);
    const std::span<float> sum = replica_->gradient(b);
    std::ranges::copy(x, sum.begin());
    const RunTimes times = replica_->sum(sum);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] -= alpha_ * (x[i] - center[i]);
      center[i] += beta_ * (one_rank_ * sum[i] - center[i]);
    }
    return times;
  }

  RunTimes show(BucketId b, const StepInfo& /*step*/) override {
    std::ranges::copy(center_of(b), replica_->weights(b).begin());
    return no_exchange();
  }

  void count_memory(MemoryUse& use) const noexcept override { use.staging += center_.size(); }
  void save(StateWriter& writer) const override { writer.put("easgd.center", center_.as<float>()); }
  void load(StateReader& reader) override { reader.get("easgd.center", center_.as<float>()); }

 private:
  [[nodiscard]] std::span<float> center_of(BucketId b) const {
    const Range range = replica_->plan()[b];
    return center_.as<float>().subspan(range.begin, range.size());
  }

  Replica* replica_ = nullptr;
  float alpha_;
  float beta_;
  float one_rank_;
  Buffer center_;
};

double elastic_alpha(const Config& config) noexcept {
  constexpr double kBeta = 0.9;
  return config.easgd.alpha > 0.0 ? config.easgd.alpha : kBeta / config.world;
}

void validate_easgd(const Config& config) {
  check_replica_techniques(config);
  if (config.easgd.alpha * config.world > 1.0) {
    throw ConfigError(fmt::format(
        "easgd.alpha = {} with world = {}: the center would move past the replicas' "
        "mean (by {} of the way); allowed: up to {:.4g}, or 0 for 0.9/world",
        config.easgd.alpha, config.world, config.easgd.alpha * config.world, 1.0 / config.world));
  }
}

}  // namespace

Backend local_backend() {
  Backend backend;
  backend.name = "local";
  backend.summary = "local steps, weights averaged every H of them (local SGD, DiLoCo)";
  backend.traits = {Consistency::bounded_stale, UpdatePlace::worker, false};
  backend.validate = check_replica_techniques;
  backend.make = [](const WorkerContext& context) {
    const LocalConfig& local = context.config.local;
    std::unique_ptr<Mixing> mixing;
    if (local.outer == "nesterov") {
      mixing = std::make_unique<OuterNesterov>(local);
    } else {
      mixing = std::make_unique<SampleAverage>();
    }
    return make_averaging_synchronizer(context, local.steps, std::move(mixing));
  };
  return backend;
}

Backend easgd_backend() {
  Backend backend;
  backend.name = "easgd";
  backend.summary = "local steps, weights pulled to a common center (elastic averaging)";
  backend.traits = {Consistency::bounded_stale, UpdatePlace::worker, false};
  backend.validate = validate_easgd;
  backend.make = [](const WorkerContext& context) {
    const Config& config = context.config;
    return make_averaging_synchronizer(
        context, config.easgd.period,
        std::make_unique<Elastic>(elastic_alpha(config), config.world));
  };
  return backend;
}

}  // namespace paceline
