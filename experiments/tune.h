// SPDX-License-Identifier: Apache-2.0
// The search of `paceline tune`: from a naive baseline, stage by stage, it keeps what makes the run
// faster, and shows as a waterfall what each stage was worth. Runs nothing by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"

namespace paceline {

/// One configuration, measured in some rounds.
struct TuneRates {
  double samples_per_second = 0.0;  ///< of all workers; median of the rounds
  double spread = 0.0;              ///< fastest round less slowest, samples/s
  double exposed_share = 0.0;       ///< exposed communication / step time, 0..1
  double wait_share = 0.0;          ///< likewise waiting
  bool host_bound = false;
};

struct TuneTools {
  std::function<void(const Config&)> check;         ///< throws ConfigError: not allowed
  std::function<TuneRates(const Config&)> measure;  ///< may throw ConfigError, Error, Interrupted
};

struct TuneCandidate {
  std::vector<std::string> flags;  ///< "key=value"
  std::string note;                ///< what it does to the numbers trained; empty: nothing
};

/// Alternatives of which at most one is kept.
struct TuneStage {
  std::string name;
  std::vector<TuneCandidate> candidates;
};

enum class TuneOutcome : std::uint8_t {
  better,  ///< faster than the best before it by more than the spreads of both together
  not_better,
  same,  ///< would repeat the best so far; not run
  refused,
  failed
};

struct TuneTrial {
  std::string stage;
  TuneCandidate candidate;
  TuneOutcome outcome = TuneOutcome::not_better;
  std::optional<TuneRates> rates;  ///< of better and not_better
  std::string reason;              ///< of refused and failed
};

/// A line of the waterfall: the best after a stage.
struct TuneStep {
  std::string stage;
  TuneCandidate kept;  ///< no flags where the stage gained nothing
  TuneRates rates;
};

struct TuneResult {
  int world = 1;
  TuneRates reference;             ///< one worker alone
  std::vector<TuneStep> steps;     ///< the baseline, then one per stage
  std::vector<TuneTrial> trials;   ///< all candidates in the order in which they were tried
  std::vector<std::string> flags;  ///< what makes the user's configuration the best one
  [[nodiscard]] const TuneRates& best() const { return steps.back().rates; }
};

/// No overlap, one bucket, fp32 on the wire, no accumulation, and for ring the ring algorithm.
[[nodiscard]] std::vector<std::string> naive_flags(const Config& user);

/// Overlap, bucket size, algorithm or servers (where the backend has them), then what changes the
/// numbers: wire precision and accumulation.
[[nodiscard]] std::vector<TuneStage> tune_stages(const Config& user);

/// Flags of the baseline that are refused are left out and listed among the trials. Throws what
/// `tools` throw for the baseline itself, and Interrupted.
[[nodiscard]] TuneResult tune_search(const Config& user, const TuneRates& reference,
                                     const std::vector<TuneStage>& stages, const TuneTools& tools);

/// Samples/s over those of `world` workers that never wait for each other.
[[nodiscard]] double tune_efficiency(const TuneResult& result, const TuneRates& rates);

/// The waterfall, what was not kept and why, and where the time goes. Ends with a newline.
[[nodiscard]] std::string tune_text(const TuneResult& result);

/// tune.json: all trials and steps, and `command`. Ends with a newline.
[[nodiscard]] std::string tune_json(const TuneResult& result, const std::string& command);

}  // namespace paceline
