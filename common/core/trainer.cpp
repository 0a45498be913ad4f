// SPDX-License-Identifier: Apache-2.0
#include "common/core/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/core/device_pace.h"
#include "common/core/lr_schedule.h"
#include "common/data/sampler.h"

namespace paceline {

namespace {

constexpr std::int64_t kEvaluationBatch = 250;

LrSchedule make_schedule(const Config& config, std::int64_t steps) {
  LrSchedule schedule;
  schedule.kind = config.lr.schedule == "step"     ? ScheduleKind::step
                  : config.lr.schedule == "cosine" ? ScheduleKind::cosine
                                                   : ScheduleKind::constant;
  schedule.base = config.optimizer.lr;
  schedule.total_steps = steps;
  schedule.warmup_steps = config.lr.warmup_steps;
  schedule.step_every = config.lr.step_every;
  schedule.gamma = config.lr.gamma;
  schedule.minimum = config.lr.min_lr;
  return schedule;
}

/// Inputs and labels of one batch, reused from step to step.
class BatchMemory {
 public:
  BatchMemory(const Dataset& dataset, std::int64_t capacity)
      : dataset_(dataset),
        inputs_(static_cast<std::size_t>(capacity * dataset.shape().elements())),
        labels_(static_cast<std::size_t>(capacity)) {}

  Batch gather(std::span<const std::uint32_t> indices) {
    const std::size_t n = indices.size();
    const std::span inputs =
        std::span(inputs_).first(n * static_cast<std::size_t>(dataset_.shape().elements()));
    const std::span labels = std::span(labels_).first(n);
    dataset_.gather(indices, inputs, labels);
    return {inputs, labels, static_cast<std::int64_t>(n)};
  }

 private:
  const Dataset& dataset_;
  std::vector<float> inputs_;
  std::vector<std::int32_t> labels_;
};

/// First and last arena bucket that a layer's parameters touch, and for each bucket how many layers
/// must finish backward before it is final.
class LayerBuckets {
 public:
  LayerBuckets(const Model& model, const BucketPlan& plan)
      : of_layer_(static_cast<std::size_t>(model.layers())),
        layers_of_(static_cast<std::size_t>(plan.count())) {
    for (const Parameter& parameter : model.parameters()) {
      if (parameter.range.size() == 0) {
        continue;
      }
      const BucketId first = plan.bucket_of(parameter.range.begin);
      const BucketId last = plan.bucket_of(parameter.range.end - 1);
      for (BucketId b = first; b <= last; ++b) {
        auto& buckets = of_layer_[static_cast<std::size_t>(parameter.layer)];
        if (std::find(buckets.begin(), buckets.end(), b) == buckets.end()) {
          buckets.push_back(b);
          ++layers_of_[static_cast<std::size_t>(b)];
        }
      }
    }
  }
  [[nodiscard]] const std::vector<BucketId>& of_layer(int layer) const {
    return of_layer_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] const std::vector<int>& layers_of() const noexcept { return layers_of_; }

 private:
  std::vector<std::vector<BucketId>> of_layer_;
  std::vector<int> layers_of_;
};

/// Turns a model's layer hooks into calls of the seam, paces the emulated device and adds up the
/// time that the seam blocked.
class StepDriver final : public LayerHooks {
 public:
  StepDriver(const Model& model, const BucketPlan& plan, Nanoseconds emulate, Synchronizer& sync,
             TrainObserver& observer)
      : layers_(model.layers()),
        buckets_(model, plan),
        pace_(model, emulate),
        sync_(sync),
        observer_(observer) {}

  void begin(const StepInfo& info) {
    step_ = info.step;
    blocked_ns_ = 0;
    pending_ = buckets_.layers_of();
    needed_.assign(pending_.size(), false);
    next_ready_ = 0;
    pace_.begin(now_ns());
    observer_.phase("forward", step_);
    segment_begin_ns_ = now_ns();
    sync_.begin_step(info);
  }

  void before_forward(int layer) override {
    for (const BucketId b : buckets_.of_layer(layer)) {
      need(b);
    }
  }

  void after_forward(int layer) override {
    pace_.forward_done(layer);
    if (layer == layers_ - 1) {
      close_segment("forward");
      observer_.phase("backward", step_);
    }
  }

  void after_backward(int layer) override {
    pace_.backward_done(layer);
    for (const BucketId b : buckets_.of_layer(layer)) {
      --pending_[static_cast<std::size_t>(b)];
    }
    launch_ready();
  }

  /// After backward: what is left is launched in order, empty buckets included.
  StepReport commit() {
    std::fill(pending_.begin(), pending_.end(), 0);
    for (std::size_t b = 0; b < needed_.size(); ++b) {
      need(static_cast<BucketId>(b));
    }
    launch_ready();
    pace_.finish();
    close_segment("backward");
    const std::int64_t begin = now_ns();
    const StepReport report = sync_.commit();
    count_blocked("commit", begin);
    return report;
  }

  void quiesce() {
    const std::int64_t begin = now_ns();
    sync_.quiesce();
    count_blocked("quiesce", begin);
  }

  [[nodiscard]] double blocked_s() const noexcept { return seconds(blocked_ns_); }
  [[nodiscard]] const DevicePace& pace() const noexcept { return pace_; }

 private:
  void need(BucketId b) {
    if (needed_[static_cast<std::size_t>(b)]) {
      return;
    }
    needed_[static_cast<std::size_t>(b)] = true;
    const std::int64_t begin = now_ns();
    sync_.parameters_needed(b, stream_);
    const std::int64_t blocked = count_blocked("parameters", begin);
    pace_.stalled(blocked, now_ns());
  }

  void launch_ready() {
    while (next_ready_ < pending_.size() && pending_[next_ready_] == 0) {
      sync_.gradient_ready(static_cast<BucketId>(next_ready_), event_);
      ++next_ready_;
    }
  }

  std::int64_t count_blocked(const char* name, std::int64_t begin) {
    constexpr std::int64_t kWorthASpan = 20'000;
    const std::int64_t end = now_ns();
    blocked_ns_ += end - begin;
    if (end - begin > kWorthASpan) {
      observer_.span(Lane::wait, name, begin, end);
    }
    return end - begin;
  }

  void close_segment(const char* name) {
    const std::int64_t now = now_ns();
    observer_.span(Lane::compute, name, segment_begin_ns_, now);
    segment_begin_ns_ = now;
  }

  int layers_;
  LayerBuckets buckets_;
  DevicePace pace_;
  Synchronizer& sync_;
  TrainObserver& observer_;
  Stream stream_;
  Event event_;
  std::vector<int> pending_;
  std::vector<bool> needed_;
  std::size_t next_ready_ = 0;
  std::int64_t blocked_ns_ = 0;
  std::int64_t segment_begin_ns_ = 0;
  std::int64_t step_ = 0;
};

/// The state of one run of train().
class Run {
 public:
  explicit Run(const TrainerParts& parts)
      : parts_(parts),
        sampler_(parts.train.size(), parts.config.train.samples, parts.config.train.batch,
                 parts.config.world, parts.workers.rank(), parts.config.seed),
        schedule_(make_schedule(parts.config, sampler_.steps())),
        plan_(make_bucket_plan(parts.model, parts.config.bucket)),
        driver_(parts.model, plan_, parts.config.compute.emulate, parts.synchronizer,
                parts.observer),
        train_memory_(parts.train, std::max<std::int64_t>(parts.config.train.batch, 1)),
        test_memory_(parts.test, kEvaluationBatch) {}

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
    view = parts_.synchronizer.bind(plan_, device_, make_optimizer_spec(parts_.config.optimizer),
                                    init);
  }

  /// Builds primitives and touches memory outside the timed part; no step is taken.
  void warm_up(ReplicaView& view) {
    std::vector<std::uint32_t> indices(
        static_cast<std::size_t>(std::min(parts_.config.train.batch, parts_.train.size())));
    std::iota(indices.begin(), indices.end(), 0U);
    const Batch batch = train_memory_.gather(indices);
    static_cast<void>(parts_.model.train_batch(batch, view.weights, view.gradients, nullptr));
    parts_.workers.barrier();
    clock_begin_ns_ = now_ns();
  }

  void step(std::int64_t t, ReplicaView& view) {
    const std::int64_t begin = now_ns();
    const SampleSlice slice = sampler_.at(t);
    const Batch batch = train_memory_.gather(slice.indices);
    const double lr = schedule_.at(t);
    driver_.begin({t, static_cast<float>(lr), batch.samples, slice.global_samples});
    const BatchResult result =
        parts_.model.train_batch(batch, view.weights, view.gradients, &driver_);
    if (!std::isfinite(result.loss_sum) && parts_.config.train.on_nan == "stop") {
      throw Error(
          fmt::format("rank {}: the loss is {} at step {}: lower optimizer.lr (now {}), or set "
                      "train.on_nan=continue to go on",
                      parts_.workers.rank(), std::abs(result.loss_sum), t, lr));
    }
    const StepReport report = driver_.commit();
    parts_.observer.phase("commit", t);
    record(t, batch, result, lr, report, seconds(now_ns() - begin));
    last_loss_sum_ = result.loss_sum;
    last_samples_ = batch.samples;
  }

  void record(std::int64_t t, const Batch& batch, const BatchResult& result, double lr,
              const StepReport& report, double duration) {
    StepMetrics m;
    m.step = t;
    m.samples = batch.samples;
    m.loss = batch.samples > 0 ? result.loss_sum / static_cast<double>(batch.samples) : 0.0;
    m.lr = lr;
    m.wait_s = std::min(report.wait_s, driver_.blocked_s());
    m.exposed_comm_s = driver_.blocked_s() - m.wait_s;
    m.compute_s = duration - driver_.blocked_s();
    m.communication_s = report.communication_s;
    m.bytes_sent = report.bytes_sent;
    m.staleness = report.staleness;
    compute_s_ += m.compute_s;
    exposed_s_ += m.exposed_comm_s;
    wait_s_ += m.wait_s;
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
      mine.loss_sum += part.loss_sum;
      mine.correct += part.correct;
    }
    const double values[] = {static_cast<double>(mine.correct), mine.loss_sum};
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
                             driver_.pace().late_fraction()};
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
    outcome.staleness = {static_cast<std::int64_t>(total[5]), total[6],
                         static_cast<std::int64_t>(largest[1])};
    outcome.final_loss = total[8] > 0.0 ? total[7] / total[8] : 0.0;
    outcome.late_fraction = largest[2];
    outcome.time_to_target_s = time_to_target_s_;
    outcome.evaluations = std::move(evaluations_);
    return outcome;
  }

  const TrainerParts& parts_;
  Sampler sampler_;
  LrSchedule schedule_;
  BucketPlan plan_;
  StepDriver driver_;
  BatchMemory train_memory_;
  BatchMemory test_memory_;
  Device device_;
  std::int64_t clock_begin_ns_ = 0;
  std::int64_t train_ns_ = 0;
  double compute_s_ = 0.0;
  double exposed_s_ = 0.0;
  double wait_s_ = 0.0;
  double communication_s_ = 0.0;
  double bytes_ = 0.0;
  Staleness staleness_;
  double last_loss_sum_ = 0.0;
  std::int64_t last_samples_ = 0;
  std::optional<double> time_to_target_s_;
  std::vector<Evaluation> evaluations_;
};

}  // namespace

BucketPlan make_bucket_plan(const Model& model, const BucketConfig& config) {
  std::vector<std::size_t> counts;
  for (const Parameter& parameter : model.parameters()) {
    counts.push_back(parameter.range.size());
  }
  return BucketPlan::group(counts, config.size, config.first_size);
}

OptimizerSpec make_optimizer_spec(const OptimizerConfig& config) {
  OptimizerSpec spec;
  spec.kind = config.name == "adam" ? OptimizerKind::adam : OptimizerKind::sgd;
  spec.nesterov = config.nesterov;
  spec.momentum = static_cast<float>(config.momentum);
  spec.weight_decay = static_cast<float>(config.weight_decay);
  spec.beta1 = static_cast<float>(config.beta1);
  spec.beta2 = static_cast<float>(config.beta2);
  spec.epsilon = static_cast<float>(config.epsilon);
  return spec;
}

TrainOutcome train(const TrainerParts& parts, ReplicaView& view) {
  return Run(parts)(view);
}

}  // namespace paceline
