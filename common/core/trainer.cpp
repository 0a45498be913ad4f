// SPDX-License-Identifier: Apache-2.0
#include "common/core/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/config/validate.h"
#include "common/core/batch_memory.h"
#include "common/core/buffer_guard.h"
#include "common/core/loss_scaler.h"
#include "common/core/lr_schedule.h"
#include "common/core/step_driver.h"
#include "common/data/sampler.h"

namespace paceline {

namespace {

constexpr std::int64_t kEvaluationBatch = 250;

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

/// Spans of the communication lane, named once per bucket.
class TransferSpans {
 public:
  void report(const std::vector<Transfer>& transfers, TrainObserver& observer) {
    for (const Transfer& transfer : transfers) {
      const auto bucket = static_cast<std::size_t>(transfer.bucket);
      while (names_.size() <= bucket) {
        names_.push_back(fmt::format("bucket {}", names_.size()));
      }
      observer.span(Lane::communication, names_[bucket].c_str(), transfer.begin_ns,
                    transfer.end_ns);
    }
  }

 private:
  std::vector<std::string> names_;
};

/// The state of one run of train().
class Run {
 public:
  explicit Run(const TrainerParts& parts)
      : parts_(parts),
        sampler_(make_sampler(parts.config, parts.train.size(), parts.workers.rank())),
        schedule_(make_schedule(parts.config, sampler_.steps())),
        plan_(make_bucket_plan(parts.model, parts.config)),
        driver_(parts.model, plan_,
                {parts.config.compute.emulate, parts.config.sync_options.find_unused,
                 parts.workers.rank(), StepStretch(parts.config, parts.workers.rank())},
                parts.synchronizer, parts.observer),
        scaler_(parts.config.precision),
        train_memory_(parts.train, std::max<std::int64_t>(parts.config.train.batch, 1)),
        test_memory_(parts.test, kEvaluationBatch),
        waited_for_s_(static_cast<std::size_t>(parts.workers.size())) {}

  TrainOutcome operator()(ReplicaView& view) {
    bind(view);
    warm_up(view);
    const std::int64_t steps = sampler_.steps();
    std::int64_t next_evaluation = parts_.config.train.eval_every;
    for (std::int64_t t = 0; t < steps; ++t) {
      parts_.abort.check();
      if (t == steps - 1) {
        parts_.observer.phase("last", t);
      }
      step(t, view);
      const std::int64_t trained = sampler_.samples_before(t + 1);
      const bool periodic = next_evaluation > 0 && trained >= next_evaluation;
      if (t == steps - 1 || periodic) {
        drain();
        parts_.observer.evaluating(trained);
        evaluate(view, trained);
        next_evaluation += periodic ? parts_.config.train.eval_every : 0;
      }
    }
    return summarise(steps);
  }

 private:
  void bind(ReplicaView& view) {
    std::vector<float> init(parts_.model.parameter_elements());
    parts_.model.initialise(init, parts_.config.seed);
    OptimizerSpec optimizer = make_optimizer_spec(parts_.config.optimizer);
    optimizer.skip_nonfinite = scaler_.enabled();
    view = parts_.synchronizer.bind(plan_, device_, optimizer, init);
    driver_.set_gradients(view.gradients);
    sparse_ = parts_.model.sparse() && parts_.synchronizer.takes_sparse_gradients() &&
              parts_.config.train.accumulate == 1 && !scaler_.enabled();
    driver_.set_sparse(sparse_);
  }

  /// Builds primitives and touches memory outside the timed part; no step is taken.
  void warm_up(ReplicaView& view) {
    std::vector<std::uint32_t> indices(
        static_cast<std::size_t>(std::min(parts_.config.train.batch, parts_.train.size())));
    std::iota(indices.begin(), indices.end(), 0U);
    const Batch batch = train_memory_.gather(indices);
    const BufferGuard guard(parts_.model);
    static_cast<void>(parts_.model.train_batch(batch, view.weights, view.gradients, nullptr));
    parts_.workers.barrier();
    clock_begin_ns_ = now_ns();
  }

  void step(std::int64_t t, ReplicaView& view) {
    const std::int64_t begin = now_ns();
    const SampleSlice slice = sampler_.at(t);
    epoch_ = slice.epoch;
    const auto samples = static_cast<std::int64_t>(slice.indices.size());
    const double lr = schedule_.at(t);
    parts_.model.begin_step(t);
    driver_.begin({t, static_cast<float>(lr), samples, slice.global_samples},
                  1.0F / scaler_.scale());
    const BatchResult result = compute(slice.indices, view);
    if (!std::isfinite(result.loss_sum) && parts_.config.train.on_nan == "stop") {
      throw Error(
          fmt::format("rank {}: the loss is {} at step {}: lower optimizer.lr (now {}), or set "
                      "train.on_nan=continue to go on",
                      parts_.workers.rank(), std::abs(result.loss_sum), t, lr));
    }
    const StepReport report = driver_.commit();
    scaler_.finish_step(report.skipped > 0);
    transfers_.report(report.transfers, parts_.observer);
    parts_.observer.phase("commit", t);
    record(t, samples, result, lr, report, seconds(now_ns() - begin));
    last_loss_sum_ = result.loss_sum;
    last_samples_ = samples;
  }

  /// Forward and backward of the step's micro-batches. Gradients add up in an arena of our own
  /// until the last one, whose backward adds that and launches the buckets.
  BatchResult compute(std::span<const std::uint32_t> indices, ReplicaView& view) {
    const auto batch = static_cast<std::size_t>(parts_.config.train.batch);
    const std::size_t count = micro_batches(indices.size());
    BatchResult total;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      accumulated_.resize(view.gradients.size());
      driver_.begin_micro_batch(false, {});
      const std::span<float> gradients = i == 0 ? std::span(accumulated_) : view.gradients;
      const auto part = indices.first(std::min(batch, indices.size()));
      indices = indices.subspan(part.size());
      add(total, train_batch(part, view.weights, gradients));
      if (i > 0) {
        driver_.need_all();
        std::ranges::transform(accumulated_, gradients, accumulated_.begin(), std::plus<>());
      }
    }
    driver_.begin_micro_batch(true, count == 1 ? std::span<float>() : accumulated_);
    add(total, train_batch(indices, view.weights, sparse_ ? std::span<float>() : view.gradients));
    return total;
  }

  BatchResult train_batch(std::span<const std::uint32_t> indices, std::span<const float> weights,
                          std::span<float> gradients) {
    Batch batch = train_memory_.gather_training(indices, epoch_);
    batch.loss_scale = scaler_.scale();
    return parts_.model.train_batch(batch, weights, gradients, &driver_);
  }

  /// A model whose layers call each other across ranks needs the same number on every rank.
  [[nodiscard]] std::size_t micro_batches(std::size_t samples) const {
    const auto batch = static_cast<std::size_t>(parts_.config.train.batch);
    if (parts_.model.collective()) {
      return static_cast<std::size_t>(parts_.config.train.accumulate);
    }
    return std::max<std::size_t>(1, (samples + batch - 1) / batch);
  }

  static void add(BatchResult& total, const BatchResult& part) noexcept {
    total.loss_sum += part.loss_sum;
    total.correct += part.correct;
  }

  void record(std::int64_t t, std::int64_t samples, const BatchResult& result, double lr,
              const StepReport& report, double duration) {
    StepMetrics m;
    m.step = t;
    m.samples = samples;
    m.loss = samples > 0 ? result.loss_sum / static_cast<double>(samples) : 0.0;
    m.lr = lr;
    m.wait_s = std::min(report.wait_s, driver_.blocked_s());
    m.waited_for = report.waited_for;
    m.waited_for_s = std::min(report.waited_for_s, m.wait_s);
    m.exposed_comm_s = driver_.blocked_s() - m.wait_s;
    m.compute_s = duration - driver_.blocked_s();
    m.communication_s = report.communication_s;
    m.bytes_sent = report.bytes_sent;
    m.staleness = report.staleness;
    m.skipped = report.skipped;
    skipped_ += report.skipped;
    compute_s_ += m.compute_s;
    exposed_s_ += m.exposed_comm_s;
    wait_s_ += m.wait_s;
    if (m.waited_for >= 0) {
      waited_for_s_.at(static_cast<std::size_t>(m.waited_for)) += m.waited_for_s;
    }
    communication_s_ += m.communication_s;
    bytes_ += static_cast<double>(m.bytes_sent);
    staleness_.merge(m.staleness);
    parts_.observer.step(m, sampler_.samples_before(t + 1), parts_.config.train.samples);
  }

  /// Finishes what is in flight; counts as training time.
  void drain() {
    const std::int64_t begin = now_ns();
    driver_.quiesce();
    exposed_s_ += seconds(now_ns() - begin);
    train_ns_ += now_ns() - clock_begin_ns_;
  }

  void evaluate(const ReplicaView& view, std::int64_t trained) {
    const auto rank = static_cast<std::uint32_t>(parts_.workers.rank());
    const auto world = static_cast<std::uint32_t>(parts_.workers.size());
    const auto test_size = static_cast<std::uint32_t>(parts_.test.size());
    const BufferGuard guard(parts_.model);
    guard.take_from_rank0(parts_.workers);
    BatchResult mine;
    std::vector<std::uint32_t> indices;
    for (std::uint32_t next = rank; next < test_size;) {
      indices.clear();
      for (; next < test_size && indices.size() < kEvaluationBatch; next += world) {
        indices.push_back(next);
      }
      parts_.abort.check();
      const BatchResult part =
          parts_.model.evaluate_batch(test_memory_.gather(indices), view.weights);
      add(mine, part);
    }
    const double values[] = {mine.correct, mine.loss_sum};
    const std::vector<double> total = parts_.workers.sum(values);
    const double train_s[] = {seconds(train_ns_)};
    Evaluation evaluation{trained, parts_.workers.max(train_s)[0], total[0] / test_size,
                          total[1] / test_size};
    evaluations_.push_back(evaluation);
    const double target = parts_.config.train.target_accuracy;
    if (target > 0.0 && evaluation.accuracy >= target && !time_to_target_s_) {
      time_to_target_s_ = evaluation.train_s;
    }
    parts_.observer.evaluated(evaluation);
    parts_.workers.barrier();
    clock_begin_ns_ = now_ns();
  }

  TrainOutcome summarise(std::int64_t steps) {
    const auto world = static_cast<double>(parts_.workers.size());
    const double rank_steps = world * static_cast<double>(std::max<std::int64_t>(steps, 1));
    const double sums[] = {
        compute_s_,       exposed_s_,     wait_s_,
        communication_s_, bytes_,         static_cast<double>(staleness_.updates),
        staleness_.sum,   last_loss_sum_, static_cast<double>(last_samples_)};
    const std::vector<double> total = parts_.workers.sum(sums);
    const double maxima[] = {seconds(train_ns_), static_cast<double>(staleness_.max),
                             driver_.pace().late_fraction(), static_cast<double>(skipped_)};
    const std::vector<double> largest = parts_.workers.max(maxima);
    TrainOutcome outcome;
    outcome.steps = steps;
    outcome.samples = sampler_.samples_before(steps);
    outcome.train_s = largest[0];
    outcome.compute_s = total[0] / rank_steps;
    outcome.exposed_comm_s = total[1] / rank_steps;
    outcome.wait_s = total[2] / rank_steps;
    outcome.communication_s = total[3] / rank_steps;
    outcome.bytes_sent = total[4] / rank_steps;
    name_culprit(outcome, total[2]);
    outcome.staleness = {static_cast<std::int64_t>(total[5]), total[6],
                         static_cast<std::int64_t>(largest[1]), all_histograms()};
    outcome.final_loss = total[8] > 0.0 ? total[7] / total[8] : 0.0;
    outcome.late_fraction = largest[2];
    outcome.skipped = static_cast<std::int64_t>(largest[3]);
    outcome.time_to_target_s = time_to_target_s_;
    outcome.evaluations = std::move(evaluations_);
    return outcome;
  }

  /// Staleness of all ranks' updates. Collective.
  std::array<std::int64_t, Staleness::kBins> all_histograms() {
    const std::vector<double> mine(staleness_.histogram.begin(), staleness_.histogram.end());
    std::array<std::int64_t, Staleness::kBins> all{};
    std::ranges::transform(parts_.workers.sum(mine), all.begin(),
                           [](double count) { return static_cast<std::int64_t>(count); });
    return all;
  }

  /// Of `wait_s` of all ranks and steps. Collective.
  void name_culprit(TrainOutcome& outcome, double wait_s) {
    const std::vector<double> costs = parts_.workers.sum(waited_for_s_);
    const auto most = std::ranges::max_element(costs);
    if (*most > 0.0) {
      outcome.waited_for = static_cast<int>(most - costs.begin());
      outcome.waited_for_share = *most / wait_s;
    }
  }

  const TrainerParts& parts_;
  Sampler sampler_;
  LrSchedule schedule_;
  BucketPlan plan_;
  StepDriver driver_;
  LossScaler scaler_;
  BatchMemory train_memory_;
  BatchMemory test_memory_;
  bool sparse_ = false;             // gradients go over by their terms
  std::int64_t epoch_ = 0;          // of the step
  std::vector<float> accumulated_;  // of the step's earlier micro-batches
  TransferSpans transfers_;
  Device device_;
  std::int64_t clock_begin_ns_ = 0;
  std::int64_t train_ns_ = 0;
  double compute_s_ = 0.0;
  double exposed_s_ = 0.0;
  double wait_s_ = 0.0;
  std::vector<double> waited_for_s_;  // by rank
  double communication_s_ = 0.0;
  double bytes_ = 0.0;
  Staleness staleness_;
  std::int64_t skipped_ = 0;
  double last_loss_sum_ = 0.0;
  std::int64_t last_samples_ = 0;
  std::optional<double> time_to_target_s_;
  std::vector<Evaluation> evaluations_;
};

}  // namespace

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

TrainOutcome train(const TrainerParts& parts, ReplicaView& view) {
  check_against_data(parts.config, parts.train.size());
  return Run(parts)(view);
}

}  // namespace paceline
