// SPDX-License-Identifier: Apache-2.0
// What one rank writes down as it trains, as observe.* asks: steps.jsonl, steps.csv, trace.json,
// TensorBoard events, MLPerf lines; and rank 0's progress on standard error.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/base/fault.h"
#include "common/config/config.h"
#include "common/core/trainer.h"
#include "common/observe/event_file.h"
#include "common/observe/ml_log.h"
#include "common/observe/progress.h"
#include "common/observe/step_log.h"
#include "common/observe/trace.h"

namespace paceline {

struct RecorderOptions {
  std::filesystem::path folder;  ///< the run's
  int rank = 0;
  std::string name;                ///< of the run, for the progress line
  std::int64_t train_samples = 1;  ///< in the training set: an epoch
  std::int64_t test_samples = 0;
  bool show_progress = false;  ///< rank 0 reports on standard error
};

/// The MLPerf lines of one run; rank 0 has them. Epochs are passes over the training set by all
/// ranks together.
class MlLogRun {
 public:
  /// Writes init_start and what the configuration says.
  MlLogRun(const Config& config, const RecorderOptions& options);
  /// A run that did not finish() stops with status aborted.
  ~MlLogRun();
  MlLogRun(const MlLogRun&) = delete;
  MlLogRun& operator=(const MlLogRun&) = delete;

  /// Before the first step.
  void start();
  void step(std::int64_t samples_trained);
  void evaluating(std::int64_t samples_trained);
  void evaluated(const Evaluation& evaluation, std::int64_t step);
  void finish();

 private:
  void start_epoch();
  void stop_epoch();
  void stop_run(std::string_view status);
  [[nodiscard]] MlLogMetadata here() const;

  MlLog log_;
  std::int64_t epoch_samples_;
  double target_;
  bool reached_ = false;
  bool running_ = false;
  bool in_epoch_ = false;
  std::int64_t epoch_ = 0;
  std::int64_t trained_ = 0;
};

/// Costs a step a few microseconds: lines and records go into buffers, names are kept.
class Recorder final : public TrainObserver {
 public:
  /// Throws Error naming the file that cannot be made. `faults` outlives it.
  Recorder(const Config& config, const RecorderOptions& options, FaultInjector& faults);

  void span(Lane lane, const char* name, std::int64_t begin_ns, std::int64_t end_ns) override;
  void step(const StepMetrics& metrics, std::int64_t trained, std::int64_t total) override;
  void evaluating(std::int64_t trained) override;
  void evaluated(const Evaluation& evaluation) override;
  void phase(const char* name, std::int64_t step) override;

  /// Training is over: writes the trace and what is buffered. Throws Error naming the file.
  void finish();

 private:
  void add_events(const StepMetrics& metrics, std::int64_t samples);

  RecorderOptions options_;
  FaultInjector& faults_;
  std::optional<StepLog> lines_;
  std::optional<StepLog> csv_;
  std::optional<Trace> trace_;
  std::optional<EventFile> events_;
  std::optional<MlLogRun> mllog_;
  std::optional<Progress> progress_;
  std::int64_t trained_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace paceline
