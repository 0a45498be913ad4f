// SPDX-License-Identifier: Apache-2.0
#include "common/core/trainer_setup.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/config/validate.h"
#include "common/core/trainer.h"

namespace paceline {

LrSchedule make_schedule(const Config& config, std::int64_t steps) {
  LrSchedule schedule;
  schedule.kind = config.lr.schedule == "step"     ? ScheduleKind::step
                  : config.lr.schedule == "cosine" ? ScheduleKind::cosine
                                                   : ScheduleKind::constant;
  schedule.base = peak_rate(config);
  schedule.warmup_from = config.lr.scale == "none" ? 0.0 : config.optimizer.lr;
  schedule.total_steps = steps;
  schedule.warmup_steps = config.lr.warmup_steps;
  schedule.step_every = config.lr.step_every;
  schedule.gamma = config.lr.gamma;
  schedule.minimum = config.lr.min_lr;
  return schedule;
}

Sampler make_sampler(const Config& config, std::int64_t train_samples, int rank) {
  return {train_samples,
          config.train.samples,
          config.train.batch * config.train.accumulate,
          config.world,
          rank,
          config.seed,
          parse_shares(config.data.shares, config.world)};
}

BucketPlan make_bucket_plan(const Model& model, const Config& config) {
  std::vector<std::size_t> counts;
  std::vector<TensorRange> tensors;
  for (const Parameter& parameter : model.parameters()) {
    counts.push_back(parameter.range.size());
    const auto dimensions = static_cast<std::int64_t>(parameter.shape.size());
    tensors.push_back({parameter.range, dimensions > 1 ? parameter.shape[0] : 1, dimensions});
  }
  const bool whole = config.optimizer.name == "lars" || config.optimizer.name == "lamb" ||
                     config.compress.method == "powersgd";
  BucketPlan plan = BucketPlan::group(counts, config.bucket.size, config.bucket.first_size,
                                      config.bucket.cut && !whole);
  if (whole) {
    plan.set_tensors(std::move(tensors));
  }
  return plan;
}

namespace {

OptimizerKind optimizer_kind(const std::string& name) {
  if (name == "adam") return OptimizerKind::adam;
  if (name == "lars") return OptimizerKind::lars;
  if (name == "lamb") return OptimizerKind::lamb;
  if (name == "onebit_adam") return OptimizerKind::onebit_adam;
  return OptimizerKind::sgd;
}

}  // namespace

OptimizerSpec make_optimizer_spec(const OptimizerConfig& config) {
  OptimizerSpec spec;
  spec.kind = optimizer_kind(config.name);
  spec.nesterov = config.nesterov;
  spec.momentum = static_cast<float>(config.momentum);
  spec.weight_decay = static_cast<float>(config.weight_decay);
  spec.beta1 = static_cast<float>(config.beta1);
  spec.beta2 = static_cast<float>(config.beta2);
  spec.epsilon = static_cast<float>(config.epsilon);
  spec.trust = static_cast<float>(config.trust);
  spec.clip_norm = static_cast<float>(config.clip_norm);
  spec.freeze_step = config.freeze_step;
  return spec;
}

void check_against_data(const Config& config, std::int64_t train_samples) {
  const TrainConfig& train = config.train;
  const std::int64_t per_step = train.batch * train.accumulate * config.world;
  if (train.accumulate > 1 && per_step > train_samples) {
    throw ConfigError(fmt::format(
        "train.accumulate = {}: a step of {} samples (with train.batch = {} and world = {}) is "
        "longer than the epoch, {} samples",
        train.accumulate, per_step, train.batch, config.world, train_samples));
  }
  const std::int64_t steps = make_sampler(config, train_samples, 0).steps();
  if (config.lr.warmup_steps > steps) {
    throw ConfigError(fmt::format(
        "lr.warmup_steps = {} is longer than the run, which is {} steps with this data set",
        config.lr.warmup_steps, steps));
  }
}

}  // namespace paceline
