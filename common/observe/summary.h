// SPDX-License-Identifier: Apache-2.0
// summary.json: what one run measured. docs/summary-schema.md describes every field.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/sync/synchronizer.h"

namespace paceline {

/// Raised when a field changes its meaning or goes; a new field alone does not raise it.
inline constexpr int kSummarySchemaVersion = 1;

/// A link as asked for and as measured before training; empty where nothing was measured.
struct LinkSummary {
  std::string requested = "none";
  std::optional<double> measured_bits_per_second;
  std::optional<double> measured_round_trip_s;
};

/// Bytes of one rank, counted (the largest rank's).
struct MemorySummary {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;
  std::int64_t staging = 0;
  std::int64_t residual = 0;
};

struct EvaluationSummary {
  std::int64_t samples_trained = 0;
  double train_seconds = 0.0;
  double accuracy = 0.0;
  double loss = 0.0;  ///< may be NaN
};

/// Times are seconds, sizes bytes. compute_s to bytes_sent_per_rank are means over ranks and steps.
struct Summary {
  int schema_version = kSummarySchemaVersion;
  std::string name;     ///< of the run
  std::string backend;  ///< value of `sync`
  std::string model;
  int world_size = 1;
  int servers = 0;
  std::uint64_t seed = 0;
  std::int64_t steps = 0;    ///< of one rank
  std::int64_t samples = 0;  ///< of all ranks
  double train_seconds = 0.0;
  double samples_per_second = 0.0;
  std::optional<double> speedup;     ///< over the single run of the same comparison
  std::optional<double> efficiency;  ///< speedup / world_size
  double compute_s = 0.0;
  double exposed_comm_s = 0.0;
  double wait_s = 0.0;
  std::optional<int> waited_for;  ///< the rank that cost the others most of their wait
  double waited_for_share = 0.0;  ///< of all ranks' wait, 0..1
  double communication_s = 0.0;
  double bytes_sent_per_rank = 0.0;
  double staleness_mean = 0.0;
  std::int64_t staleness_max = 0;
  std::array<std::int64_t, Staleness::kBins> staleness_histogram{};
  std::int64_t skipped_steps = 0;  ///< updates left out for inf or NaN, of the rank with most
  double test_accuracy = 0.0;
  double test_loss = 0.0;                  ///< may be NaN
  double final_train_loss = 0.0;           ///< may be NaN
  double target_accuracy = 0.0;            ///< 0: none
  std::optional<double> time_to_target_s;  ///< empty: not reached, or no target
  std::string weights_sha256;
  std::int64_t peak_rss_bytes = 0;  ///< the largest rank's
  /// GPU memory that one rank took at most, the largest rank's; empty: none was used.
  std::optional<std::int64_t> peak_device_bytes;
  /// Of rank 0's training batches those launched as CUDA graphs; empty: without cuda.graph.
  std::optional<std::int64_t> graph_batches;
  /// Who summed gradients: nccl or host; empty: nobody had a choice.
  std::optional<std::string> collectives;
  LinkSummary link_inter;
  LinkSummary link_intra;
  bool host_bound = false;     ///< ranks could not keep the emulated device's pace
  double late_fraction = 0.0;  ///< steps that missed it, worst rank
  MemorySummary memory;
  std::vector<EvaluationSummary> evaluations;
  bool failed = false;  ///< a row without measurements in a comparison; never in summary.json
};

/// JSON with an indent of two, keys in the order above, a newline at the end.
[[nodiscard]] std::string summary_to_json(const Summary& summary);

/// Throws Error naming `source` and the field that is missing or wrong.
[[nodiscard]] Summary summary_from_json(std::string_view text, std::string_view source);
[[nodiscard]] Summary load_summary(const std::filesystem::path& file);

/// Sets speedup and efficiency of each that did not fail against the first whose backend is
/// "single" (all are left empty without one).
void set_speedups(std::vector<Summary>& summaries);

}  // namespace paceline
