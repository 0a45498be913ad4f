// SPDX-License-Identifier: Apache-2.0
#include "common/core/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <numeric>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/core/batch_memory.h"
#include "common/core/buffer_guard.h"
#include "common/core/loss_scaler.h"
#include "common/core/step_driver.h"
#include "common/core/trainer_setup.h"

namespace paceline {

namespace {

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
                parts.device, parts.synchronizer, parts.observer),
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
    view = parts_.synchronizer.bind(plan_, parts_.device, optimizer, init);
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
    if (parts_.model.asynchronous()) {
      static_cast<void>(parts_.model.take_result());
    }
    parts_.device.stream().synchronize();  // its backward reads weights that a step may replace
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
    StepMetrics& m = open_.emplace_back().metrics;
    m.step = t;
    m.samples = samples;
    m.lr = lr;
    compute(slice.indices, view);
    if (!parts_.model.asynchronous()) {
      check_loss(open_.back());
    }
    const StepReport report = driver_.commit();
    scaler_.finish_step(report.skipped > 0);
    transfers_.report(report.transfers, parts_.observer);
    parts_.observer.phase("commit", t);
    while (open_.size() > 1) {  // while the GPU is at the step before, this one's work is queued
      close_oldest();
    }
    measure(open_.back().metrics, report, seconds(now_ns() - begin));
    if (!parts_.model.asynchronous()) {
      close_oldest();
    }
  }

  /// A step whose results are not all there yet: a GPU may still be at it.
  struct OpenStep {
    StepMetrics metrics;
    BatchResult result;
    int untaken = 0;  ///< batches whose result the model still has
  };

  void take_oldest_result() {
    const auto step = std::ranges::find_if(open_, [](const OpenStep& s) { return s.untaken > 0; });
    add(step->result, parts_.model.take_result());
    --step->untaken;
  }

  void check_loss(const OpenStep& step) const {
    if (!std::isfinite(step.result.loss_sum) && parts_.config.train.on_nan == "stop") {
      throw Error(
          fmt::format("rank {}: the loss is {} at step {}: lower optimizer.lr (now {}), or set "
                      "train.on_nan=continue to go on",
                      parts_.workers.rank(), std::abs(step.result.loss_sum), step.metrics.step,
                      step.metrics.lr));
    }
  }

  /// Takes what the oldest step's batches gave, and reports it.
  void close_oldest() {
    while (open_.front().untaken > 0) {
      take_oldest_result();
    }
    const OpenStep step = open_.front();
    open_.pop_front();
    check_loss(step);
    record(step);
  }

  /// Forward and backward of the step's micro-batches. Gradients add up in an arena of our own
  /// until the last one, whose backward adds that and launches the buckets.
  void compute(std::span<const std::uint32_t> indices, ReplicaView& view) {
    const auto batch = static_cast<std::size_t>(parts_.config.train.batch);
    const std::size_t count = micro_batches(indices.size());
    std::span<float> accumulated;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      accumulated = accumulation_arena(view.gradients.size());
      driver_.begin_micro_batch(false, {});
      const std::span<float> gradients = i == 0 ? accumulated : view.gradients;
      const auto part = indices.first(std::min(batch, indices.size()));
      indices = indices.subspan(part.size());
      train_batch(part, view.weights, gradients);
      if (i > 0) {
        driver_.need_all();
        parts_.device.add(accumulated, gradients);
      }
    }
    driver_.begin_micro_batch(true, accumulated);
    train_batch(indices, view.weights, sparse_ ? std::span<float>() : view.gradients);
  }

  std::span<float> accumulation_arena(std::size_t elements) {
    if (!accumulated_) {
      accumulated_ = parts_.device.allocate(elements, "the gradients of earlier micro-batches");
    }
    return accumulated_->values();
  }

  void train_batch(std::span<const std::uint32_t> indices, std::span<const float> weights,
                   std::span<float> gradients) {
    Batch batch = train_memory_.gather_training(indices, epoch_);
    batch.loss_scale = scaler_.scale();
    const BatchResult result = parts_.model.train_batch(batch, weights, gradients, &driver_);
    if (!parts_.model.asynchronous()) {
      add(open_.back().result, result);
      return;
    }
    ++open_.back().untaken;
    if (untaken_results() == Model::kOpenResults) {
      take_oldest_result();
    }
  }

  [[nodiscard]] int untaken_results() const {
    return std::accumulate(open_.begin(), open_.end(), 0,
                           [](int sum, const OpenStep& step) { return sum + step.untaken; });
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

  /// Where the step's time went. A GPU's step is over when its result is taken; from one step to
  /// the next the host's times add up to the GPU's.
  void measure(StepMetrics& m, const StepReport& report, double duration) {
    const double blocked = driver_.take_blocked(duration);
    m.wait_s = std::min(report.wait_s, blocked);
    m.waited_for = report.waited_for;
    m.waited_for_s = std::min(report.waited_for_s, m.wait_s);
    m.exposed_comm_s = blocked - m.wait_s;
    m.compute_s = duration - blocked;
    m.communication_s = report.communication_s;
    m.bytes_sent = report.bytes_sent;
    m.staleness = report.staleness;
    m.skipped = report.skipped;
  }

  void record(const OpenStep& step) {
    StepMetrics m = step.metrics;
    m.loss = m.samples > 0 ? step.result.loss_sum / static_cast<double>(m.samples) : 0.0;
    last_loss_sum_ = step.result.loss_sum;
    last_samples_ = m.samples;
    skipped_ += m.skipped;
    compute_s_ += m.compute_s;
    exposed_s_ += m.exposed_comm_s;
    wait_s_ += m.wait_s;
    if (m.waited_for >= 0) {
      waited_for_s_.at(static_cast<std::size_t>(m.waited_for)) += m.waited_for_s;
    }
    communication_s_ += m.communication_s;
    bytes_ += static_cast<double>(m.bytes_sent);
    staleness_.merge(m.staleness);
    parts_.observer.step(m, sampler_.samples_before(m.step + 1), parts_.config.train.samples);
  }

  /// Finishes what is in flight; counts as training time.
  void drain() {
    const std::int64_t begin = now_ns();
    while (!open_.empty()) {
      close_oldest();
    }
    driver_.quiesce();
    parts_.device.stream().synchronize();  // so that it has accounted for all
    const double duration = seconds(now_ns() - begin);
    const double blocked = driver_.take_blocked(duration);
    exposed_s_ += blocked;
    compute_s_ += duration - blocked;
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
  bool sparse_ = false;                       // gradients go over by their terms
  std::int64_t epoch_ = 0;                    // of the step
  std::unique_ptr<DeviceArena> accumulated_;  // of the step's earlier micro-batches
  std::deque<OpenStep> open_;
  TransferSpans transfers_;
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

TrainOutcome train(const TrainerParts& parts, ReplicaView& view) {
  check_against_data(parts.config, parts.train.size());
  return Run(parts)(view);
}

}  // namespace paceline
