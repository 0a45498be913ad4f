// SPDX-License-Identifier: Apache-2.0
#include "common/observe/recorder.h"

#include <fmt/format.h>

#include <string_view>

#include "common/base/error.h"
#include "common/config/validate.h"

namespace paceline {

// ---- MLPerf lines

MlLogRun::MlLogRun(const Config& config, const RecorderOptions& options)
    : log_(options.folder),
      epoch_samples_(options.train_samples),
      target_(config.train.target_accuracy) {
  log_.start("init_start");
  log_.point("submission_benchmark", config.model);
  log_.point("seed", static_cast<std::int64_t>(config.seed));
  log_.point("global_batch_size", config.train.batch * config.train.accumulate * config.world);
  log_.point("gradient_accumulation_steps", config.train.accumulate);
  log_.point("opt_name", config.optimizer.name);
  log_.point("opt_base_learning_rate", peak_rate(config));
  log_.point("opt_learning_rate_warmup_steps", config.lr.warmup_steps);
  log_.point("train_samples", options.train_samples);
  log_.point("eval_samples", options.test_samples);
}

MlLogRun::~MlLogRun() {
  try {
    if (running_) stop_run("aborted");
  } catch (const Error&) {
    running_ = false;  // a full disk is told by finish()
  }
}

void MlLogRun::start() {
  if (running_) return;
  running_ = true;
  log_.stop("init_stop");
  log_.start("run_start");
  start_epoch();
}

void MlLogRun::step(std::int64_t samples_trained) {
  if (!in_epoch_) start_epoch();
  trained_ = samples_trained;
  if (trained_ >= epoch_ * epoch_samples_) stop_epoch();
}

void MlLogRun::evaluating(std::int64_t samples_trained) {
  trained_ = samples_trained;
  log_.start("eval_start", here());
}

void MlLogRun::evaluated(const Evaluation& evaluation, std::int64_t step) {
  reached_ = reached_ || evaluation.accuracy >= target_;
  MlLogMetadata with_step = here();
  with_step.step = step;
  if (evaluation.train_s > 0.0) {
    log_.throughput(static_cast<double>(evaluation.samples_trained) / evaluation.train_s,
                    with_step);
  }
  log_.point("eval_accuracy", evaluation.accuracy, here());
  log_.stop("eval_stop", here());
  log_.flush();
}

void MlLogRun::finish() {
  if (running_) stop_run(target_ > 0.0 && !reached_ ? "aborted" : "success");
  log_.flush();
}

void MlLogRun::start_epoch() {
  in_epoch_ = true;
  ++epoch_;
  log_.start("epoch_start", here());
}

void MlLogRun::stop_epoch() {
  log_.stop("epoch_stop", here());
  in_epoch_ = false;
}

void MlLogRun::stop_run(std::string_view status) {
  if (in_epoch_) stop_epoch();
  MlLogMetadata metadata = here();
  metadata.status = status;
  log_.stop("run_stop", metadata);
  running_ = false;
}

MlLogMetadata MlLogRun::here() const {
  return {epoch_, trained_};
}

// ---- everything

Recorder::Recorder(const Config& config, const RecorderOptions& options, FaultInjector& faults)
    : options_(options), faults_(faults) {
  const ObserveConfig& observe = config.observe;
  if (observe.steps) lines_.emplace(options.folder, options.rank);
  if (observe.csv) csv_.emplace(options.folder, options.rank, StepFormat::csv);
  if (observe.trace) trace_.emplace(options.rank);
  if (observe.tensorboard) {
    events_.emplace(options.folder / "tensorboard" / fmt::format("rank{}", options.rank));
  }
  if (options.rank != 0) return;
  if (observe.mllog) mllog_.emplace(config, options);
  if (options.show_progress) progress_.emplace(options.name, config.train.samples);
}

void Recorder::span(Lane lane, const char* name, std::int64_t begin_ns, std::int64_t end_ns) {
  if (trace_) trace_->add(lane, name, begin_ns, end_ns);
}

void Recorder::step(const StepMetrics& metrics, std::int64_t trained, std::int64_t /*total*/) {
  if (lines_) lines_->write(metrics);
  if (csv_) csv_->write(metrics);
  if (events_) add_events(metrics, trained - trained_);
  if (mllog_) mllog_->step(trained);
  if (progress_) progress_->update(trained, fmt::format("loss {:.3f}", metrics.loss));
  trained_ = trained;
  step_ = metrics.step;
}

void Recorder::add_events(const StepMetrics& metrics, std::int64_t samples) {
  const auto value = [](auto number) { return static_cast<float>(number); };
  const double duration = metrics.compute_s + metrics.exposed_comm_s + metrics.wait_s;
  const double staleness =
      metrics.staleness.updates > 0
          ? metrics.staleness.sum / static_cast<double>(metrics.staleness.updates)
          : 0.0;
  const Scalar scalars[] = {
      {"loss", value(metrics.loss)},
      {"lr", value(metrics.lr)},
      {"samples_per_second", value(duration > 0.0 ? static_cast<double>(samples) / duration : 0.0)},
      {"compute_ms", value(1e3 * metrics.compute_s)},
      {"exposed_comm_ms", value(1e3 * metrics.exposed_comm_s)},
      {"wait_ms", value(1e3 * metrics.wait_s)},
      {"bytes_sent", value(metrics.bytes_sent)},
      {"staleness", value(staleness)}};
  events_->add(metrics.step, scalars);
}

void Recorder::evaluating(std::int64_t trained) {
  if (mllog_) mllog_->evaluating(trained);
}

void Recorder::evaluated(const Evaluation& evaluation) {
  if (mllog_) mllog_->evaluated(evaluation, step_);
  if (events_) {
    const Scalar scalars[] = {{"test/accuracy", static_cast<float>(evaluation.accuracy)},
                              {"test/loss", static_cast<float>(evaluation.loss)}};
    events_->add(step_, scalars);
    events_->flush();  // so that TensorBoard follows a long run
  }
  if (progress_) {
    progress_->message(fmt::format("  {} samples, {:.1f} s: test accuracy {:.2f}%",
                                   evaluation.samples_trained, evaluation.train_s,
                                   100.0 * evaluation.accuracy));
  }
}

void Recorder::phase(const char* name, std::int64_t step) {
  if (mllog_ && step == 0 && std::string_view(name) == "forward") mllog_->start();
  faults_.at(name, step);
}

void Recorder::finish() {
  if (progress_) progress_->finish();
  if (lines_) lines_->flush();
  if (csv_) csv_->flush();
  if (events_) events_->flush();
  if (mllog_) mllog_->finish();
  if (trace_) trace_->write(options_.folder);
}

}  // namespace paceline
