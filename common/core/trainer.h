// SPDX-License-Identifier: Apache-2.0
// The training loop: one for every backend. It drives a Model and a Synchronizer through the seam,
// paces an emulated device, measures, and evaluates.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/abort.h"
#include "common/comm/communicator.h"
#include "common/config/config.h"
#include "common/core/device.h"
#include "common/core/model.h"
#include "common/data/dataset.h"
#include "common/sync/synchronizer.h"

namespace paceline {

/// One step of one rank, in seconds. compute + exposed communication + wait = the step's duration.
/// On a GPU what its stream stood still in the seam is known a step late and counted then.
struct StepMetrics {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  double loss = 0.0;  ///< mean over this rank's samples; 0 without samples
  double lr = 0.0;
  double compute_s = 0.0;
  double exposed_comm_s = 0.0;   ///< kept from computing by the seam, less wait_s
  double wait_s = 0.0;           ///< blocked for a slower rank
  int waited_for = -1;           ///< the rank that cost most of wait_s; -1: none, or not known
  double waited_for_s = 0.0;     ///< what it cost
  double communication_s = 0.0;  ///< transfers in progress, hidden or not
  std::uint64_t bytes_sent = 0;
  Staleness staleness;
  int skipped = 0;  ///< updates left out because their gradient held inf or NaN
};

struct Evaluation {
  std::int64_t samples_trained = 0;  ///< by all workers
  double train_s = 0.0;              ///< training time so far, evaluations left out
  double accuracy = 0.0;             ///< over the whole test set
  double loss = 0.0;                 ///< mean over the test set
};

/// What one rank did, summed over its steps, and what all agree on.
struct TrainOutcome {
  std::int64_t steps = 0;
  std::int64_t samples = 0;  ///< of all workers
  double train_s = 0.0;      ///< slowest rank's, evaluations left out
  double compute_s = 0.0;    ///< this and below: per-step means over ranks and steps
  double exposed_comm_s = 0.0;
  double wait_s = 0.0;
  double communication_s = 0.0;
  double bytes_sent = 0.0;  ///< per rank and step
  int waited_for = -1;      ///< the rank that cost all others most of their wait; -1: not known
  double waited_for_share = 0.0;  ///< of all ranks' wait, 0..1
  Staleness staleness;            ///< of all ranks
  std::int64_t skipped = 0;       ///< updates left out, of the rank with most
  double final_loss = 0.0;        ///< mean training loss of the last step over all ranks' samples
  double late_fraction = 0.0;     ///< steps that missed the emulated device's pace, worst rank
  std::optional<double> time_to_target_s;
  std::vector<Evaluation> evaluations;
};

enum class Lane : std::uint8_t { compute, communication, wait };

/// Hears of the run as it goes, on the training thread. All times are now_ns().
class TrainObserver {
 public:
  TrainObserver() = default;
  virtual ~TrainObserver() = default;
  TrainObserver(const TrainObserver&) = delete;
  TrainObserver& operator=(const TrainObserver&) = delete;
  virtual void span(Lane lane, const char* name, std::int64_t begin_ns, std::int64_t end_ns) = 0;
  virtual void step(const StepMetrics& metrics, std::int64_t samples_trained,
                    std::int64_t samples_total) = 0;
  /// Training pauses for an evaluation, after so many samples of all workers.
  virtual void evaluating(std::int64_t /*samples_trained*/) {}
  virtual void evaluated(const Evaluation& evaluation) = 0;
  /// Before forward, between forward and backward, after commit, and (phase "last") before the last
  /// step: the places where a fault can be injected.
  virtual void phase(const char* name, std::int64_t step) = 0;
};

/// Samples that an evaluation gathers at once.
inline constexpr std::int64_t kEvaluationBatch = 250;

/// Everything outlives the trainer; the model and the synchronizer's replica are the device's.
struct TrainerParts {
  const Config& config;
  Device& device;
  Model& model;
  const Dataset& train;
  const Dataset& test;
  Synchronizer& synchronizer;
  Communicator& workers;
  AbortToken& abort;
  TrainObserver& observer;
};

/// Trains config.train.samples samples with all workers; collective. Every evaluation runs with
/// rank 0's Model::buffers() on all ranks; each rank then trains on with its own. After it returns,
/// `view` (what bind returned) holds the same final weights on every rank. Throws Error naming rank
/// and step when the loss is not finite (unless train.on_nan=continue), and whatever the seam
/// throws.
[[nodiscard]] TrainOutcome train(const TrainerParts& parts, ReplicaView& view);

/// Refuses what cannot be with a training set of so many samples: fewer samples than ranks, a part
/// of data.shares without samples, a step longer than the epoch, a warm-up longer than the run.
/// train() asks too. Throws ConfigError naming the key.
void check_against_data(const Config& config, std::int64_t train_samples);

/// The plan, optimizer and schedule that a configuration asks for.
[[nodiscard]] BucketPlan make_bucket_plan(const Model& model, const Config& config);
[[nodiscard]] OptimizerSpec make_optimizer_spec(const OptimizerConfig& config);

}  // namespace paceline
