// SPDX-License-Identifier: Apache-2.0
#include "experiments/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "common/config/print.h"
#include "common/config/schema.h"

namespace paceline {

namespace {

constexpr const char* kBaseline = "naive baseline";

/// The value that the user's configuration has, as a flag.
std::string as_it_is(const Config& user, const char* key) {
  std::string value = value_as_toml(user, *find_key(key));
  std::erase(value, '"');
  return fmt::format("{}={}", key, value);
}

Config with_flags(Config config, const std::vector<std::string>& flags) {
  apply_overrides(config, flags);
  return config;
}

bool same_run(const Config& a, const Config& b) {
  return canonical_text(a) == canonical_text(b);
}

std::string key_of(const std::string& flag) {
  return flag.substr(0, flag.find('='));
}

/// Of each key the last value, in the order in which the keys first appear.
void set_flags(std::vector<std::string>& flags, const std::vector<std::string>& more) {
  for (const std::string& flag : more) {
    const auto known = std::ranges::find(flags, key_of(flag), key_of);
    if (known == flags.end()) {
      flags.push_back(flag);
    } else {
      *known = flag;
    }
  }
}

/// With overlap, which one large bucket may have hidden the use of.
TuneStage bucket_stage() {
  TuneStage stage{"bucket size", {}};
  for (const char* size : {"256KiB", "1MiB", "4MiB", "16MiB"}) {
    const char* first = std::string_view(size) == "256KiB" ? "256KiB" : "1MiB";
    stage.candidates.push_back(
        {{fmt::format("bucket.size={}", size), fmt::format("bucket.first_size={}", first),
          "bucket.cut=true", "sync.overlap=true"},
         ""});
  }
  return stage;
}

TuneStage one_key(std::string name, const char* key, const std::vector<const char*>& values) {
  TuneStage stage{std::move(name), {}};
  for (const char* value : values) {
    stage.candidates.push_back({{fmt::format("{}={}", key, value)}, ""});
  }
  return stage;
}

/// The search's state: what is best, and all that was tried.
class GreedySearch {
 public:
  GreedySearch(const Config& user, const TuneRates& reference, const TuneTools& tools)
      : tools_(tools), user_(user), best_(user) {
    result_.world = user.world;
    result_.reference = reference;
  }

  void start_from(const std::vector<std::string>& flags) {
    for (const std::string& flag : flags) {
      TuneTrial trial{kBaseline, {{flag}, ""}, TuneOutcome::refused, std::nullopt, ""};
      try {
        const Config config = with_flags(best_, {flag});
        tools_.check(config);
        best_ = config;
        set_flags(flags_, {flag});
      } catch (const ConfigError& error) {
        trial.reason = error.what();
        result_.trials.push_back(trial);
      }
    }
    tools_.check(best_);
    result_.steps.push_back({kBaseline, {flags_, ""}, tools_.measure(best_)});
  }

  void run(const TuneStage& stage) {
    TuneStep step{stage.name, {}, result_.best()};
    const Config before = best_;
    for (const TuneCandidate& candidate : stage.candidates) {
      TuneTrial trial{stage.name, candidate, TuneOutcome::not_better, std::nullopt, ""};
      const std::optional<Config> config = try_one(before, step.rates, trial);
      if (config) {
        best_ = *config;
        step.kept = candidate;
        step.rates = *trial.rates;
      }
      result_.trials.push_back(std::move(trial));
    }
    set_flags(flags_, step.kept.flags);
    result_.steps.push_back(std::move(step));
  }

  /// What the user's configuration has already is no flag.
  TuneResult finish() {
    std::ranges::copy_if(
        flags_, std::back_inserter(result_.flags),
        [this](const std::string& flag) { return !same_run(user_, with_flags(user_, {flag})); });
    return std::move(result_);
  }

 private:
  /// The candidate's configuration if it is better.
  std::optional<Config> try_one(const Config& before, const TuneRates& best, TuneTrial& trial) {
    try {
      Config config = with_flags(before, trial.candidate.flags);
      tools_.check(config);
      if (same_run(config, best_)) {
        trial.outcome = TuneOutcome::same;
        return std::nullopt;
      }
      trial.rates = tools_.measure(config);
      const double gain = trial.rates->samples_per_second - best.samples_per_second;
      if (gain <= trial.rates->spread + best.spread) return std::nullopt;
      trial.outcome = TuneOutcome::better;
      return config;
    } catch (const Interrupted&) {
      throw;
    } catch (const ConfigError& error) {
      trial.outcome = TuneOutcome::refused;
      trial.reason = error.what();
    } catch (const Error& error) {
      trial.outcome = TuneOutcome::failed;
      trial.reason = error.what();
    }
    return std::nullopt;
  }

  const TuneTools& tools_;
  Config user_;
  Config best_;
  std::vector<std::string> flags_;
  TuneResult result_;
};

}  // namespace

std::vector<std::string> naive_flags(const Config& user) {
  std::vector<std::string> flags{"sync.overlap=false", "bucket.size=1GiB", "bucket.first_size=1GiB",
                                 "bucket.cut=false",   "sync.wire=fp32",   "train.accumulate=1"};
  if (user.sync == "ring") flags.emplace_back("ring.algorithm=ring");
  return flags;
}

std::vector<TuneStage> tune_stages(const Config& user) {
  std::vector<TuneStage> stages;
  stages.push_back({"overlap",
                    {{{"sync.overlap=true", as_it_is(user, "bucket.size"),
                       as_it_is(user, "bucket.first_size"), as_it_is(user, "bucket.cut")},
                      ""}}});
  stages.push_back(bucket_stage());
  if (user.sync == "ring") {
    stages.push_back(one_key("algorithm", "ring.algorithm",
                             {"auto", "tree", "halving_doubling", "hierarchical"}));
  }
  if (user.sync == "ps") stages.push_back(one_key("servers", "ps.servers", {"1", "2"}));
  stages.push_back({"wire precision", {{{"sync.wire=bf16"}, "rounds gradients to bf16"}}});
  stages.push_back({"accumulation",
                    {{{"train.accumulate=2"}, "changes the batch: 2 x larger"},
                     {{"train.accumulate=4"}, "changes the batch: 4 x larger"}}});
  return stages;
}

TuneResult tune_search(const Config& user, const TuneRates& reference,
                       const std::vector<TuneStage>& stages, const TuneTools& tools) {
  GreedySearch search(user, reference, tools);
  search.start_from(naive_flags(user));
  for (const TuneStage& stage : stages) search.run(stage);
  return search.finish();
}

double tune_efficiency(const TuneResult& result, const TuneRates& rates) {
  return rates.samples_per_second / (result.world * result.reference.samples_per_second);
}

}  // namespace paceline
