// SPDX-License-Identifier: Apache-2.0
// What `paceline tune` shows: the waterfall and tune.json.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "experiments/tune.h"

namespace paceline {

namespace {

using TuneJson = nlohmann::ordered_json;

constexpr int kTuneBar = 30;  ///< characters of 100%

const char* tune_outcome_name(TuneOutcome outcome) {
  switch (outcome) {
    case TuneOutcome::better:
      return "better";
    case TuneOutcome::not_better:
      return "not better";
    case TuneOutcome::same:
      return "same";
    case TuneOutcome::refused:
      return "refused";
    case TuneOutcome::failed:
      return "failed";
  }
  return "";
}

/// "####++": what was there before, and what the stage added.
std::string tune_bar(double before, double after) {
  const auto length = [](double share) {
    return static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.2) * kTuneBar));
  };
  const std::size_t old = std::min(length(before), length(after));
  return std::string(old, '#') + std::string(length(after) - old, '+');
}

std::string candidate_text(const TuneCandidate& candidate) {
  const std::string flags = fmt::format("{}", fmt::join(candidate.flags, " "));
  return candidate.note.empty() ? flags : fmt::format("{} ({})", flags, candidate.note);
}

std::string waterfall(const TuneResult& result) {
  std::string out =
      fmt::format("{:<15} {:>9} {:>7} {:>10} {:>7}  {:<{}}  {}\n", "stage", "samples/s", "spread",
                  "efficiency", "points", "", kTuneBar, "flags");
  double before = 0.0;
  for (const TuneStep& step : result.steps) {
    const double after = tune_efficiency(result, step.rates);
    const bool first = &step == &result.steps.front();
    const std::string points = first ? "" : fmt::format("{:+.1f}", 100.0 * (after - before));
    fmt::format_to(std::back_inserter(out),
                   "{:<15} {:>9.0f} {:>7.0f} {:>9.1f}% {:>7}  {:<{}}  {}\n", step.stage,
                   step.rates.samples_per_second, step.rates.spread, 100.0 * after, points,
                   tune_bar(first ? after : before, after), kTuneBar,
                   step.kept.flags.empty() ? "-" : candidate_text(step.kept));
    before = after;
  }
  return out;
}

std::string trial_text(const TuneResult& result, const TuneTrial& trial) {
  const std::string what = candidate_text(trial.candidate);
  switch (trial.outcome) {
    case TuneOutcome::refused:
    case TuneOutcome::failed:
      return fmt::format("  {}: {}: {}\n", what, tune_outcome_name(trial.outcome), trial.reason);
    case TuneOutcome::same:
      return fmt::format("  {}: the same as the best so far\n", what);
    default:
      return fmt::format("  {}: {:.0f} samples/s, spread {:.0f}, {:.1f}%\n", what,
                         trial.rates->samples_per_second, trial.rates->spread,
                         100.0 * tune_efficiency(result, *trial.rates));
  }
}

/// Candidates that are no line of the waterfall.
std::string others(const TuneResult& result) {
  std::string out;
  for (const TuneTrial& trial : result.trials) {
    const bool shown = std::ranges::any_of(result.steps, [&](const TuneStep& step) {
      return trial.outcome == TuneOutcome::better && step.stage == trial.stage &&
             step.kept.flags == trial.candidate.flags;
    });
    if (!shown) out += trial_text(result, trial);
  }
  return out.empty() ? out : "not kept:\n" + out;
}

std::string tune_shares(const char* name, const TuneRates& rates) {
  return fmt::format("{}: {:.1f}% of a step is exposed communication, {:.1f}% waiting\n", name,
                     100.0 * rates.exposed_share, 100.0 * rates.wait_share);
}

TuneJson rates_json(const TuneResult& result, const TuneRates& rates) {
  return {{"samples_per_second", rates.samples_per_second},
          {"spread", rates.spread},
          {"efficiency", tune_efficiency(result, rates)},
          {"exposed_comm_share", rates.exposed_share},
          {"wait_share", rates.wait_share},
          {"host_bound", rates.host_bound}};
}

TuneJson candidate_json(const std::string& stage, const TuneCandidate& candidate) {
  return {{"stage", stage}, {"flags", candidate.flags}, {"note", candidate.note}};
}

}  // namespace

std::string tune_text(const TuneResult& result) {
  return fmt::format("one worker alone: {:.0f} samples/s; {} workers at that rate are 100%\n\n",
                     result.reference.samples_per_second, result.world) +
         waterfall(result) + "\n" + others(result) +
         tune_shares("baseline", result.steps.front().rates) + tune_shares("best", result.best());
}

std::string tune_json(const TuneResult& result, const std::string& command) {
  TuneJson steps = TuneJson::array();
  for (const TuneStep& step : result.steps) {
    steps.push_back(candidate_json(step.stage, step.kept));
    steps.back()["rates"] = rates_json(result, step.rates);
  }
  TuneJson trials = TuneJson::array();
  for (const TuneTrial& trial : result.trials) {
    trials.push_back(candidate_json(trial.stage, trial.candidate));
    trials.back()["outcome"] = tune_outcome_name(trial.outcome);
    trials.back()["reason"] = trial.reason;
    trials.back()["rates"] = trial.rates ? rates_json(result, *trial.rates) : TuneJson(nullptr);
  }
  const TuneJson all{{"world_size", result.world},
                     {"one_worker_samples_per_second", result.reference.samples_per_second},
                     {"steps", steps},
                     {"trials", trials},
                     {"flags", result.flags},
                     {"command", command}};
  return all.dump(2, ' ', false, TuneJson::error_handler_t::replace) + "\n";
}

}  // namespace paceline
