// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/observe/files.h"
#include "experiments/backends.h"
#include "experiments/commands.h"
#include "experiments/config_flags.h"
#include "experiments/machine.h"
#include "experiments/train.h"
#include "experiments/tune.h"

namespace paceline {

namespace {

constexpr const char* kTuneExamples = R"(
Examples:
  paceline tune --sync=ring --world=2 link.inter=1gbit,50us topology.ranks_per_node=1 compute.emulate=60ms
  paceline tune --config my.toml --sync=ps --world=4 --rounds 3

There must be 2 workers or more. Each candidate is a short run: --steps steps in each of --rounds rounds. It is kept if its median
beats the best so far by more than the spreads (fastest less slowest round) of both together.)";

constexpr std::int64_t kTuneTestSamples = 64;

struct TuneFlags {
  ConfigFlags config;
  std::int64_t steps = 32;
  int rounds = 2;
  std::string folder;
  bool json = false;
  bool quiet = false;
};

Config user_config(const ConfigFlags& flags) {
  Config config = resolve(flags);
  if (config.world == 1) {
    throw ConfigError("world = 1: one worker synchronises nothing; tune needs 2 or more");
  }
  return config;
}

/// A short run for its rate alone, of as many samples whatever the accumulation.
Config short_run(Config config, const TuneFlags& flags, const std::string& folder) {
  const std::int64_t step = config.train.batch * config.world * config.train.accumulate;
  const std::int64_t samples = flags.steps * config.train.batch * config.world;
  config.train.samples = (samples + step - 1) / step * step;
  config.train.eval_every = 0;
  config.train.target_accuracy = 0.0;
  config.lr.warmup_steps = 0;
  config.data.test_limit = config.data.test_limit == 0
                               ? kTuneTestSamples
                               : std::min(config.data.test_limit, kTuneTestSamples);
  config.fault.kill.clear();
  config.fault.stop.clear();
  config.observe = {.trace = false, .steps = false};
  config.run.dir = folder;
  config.run.name = "tune";
  return config;
}

/// The same work by one worker, who has nobody to talk to.
Config lone_worker(Config config) {
  config.sync = "single";
  config.world = 1;
  config.data.shares.clear();
  config.train.accumulate = 1;
  config.sync_options = {};
  config.bucket = {};
  config.compress = {};
  config.ps = {};
  config.async = {};
  config.ring = {};
  config.local = {};
  config.easgd = {};
  config.gossip = {};
  config.link = {};
  config.topology = {};
  config.comm.transport = "auto";
  config.comm.tcp_connections = 1;
  config.fault.slow_rank.clear();
  config.fault.jitter = "none";
  if (config.optimizer.name == "onebit_adam") config.optimizer.name = "adam";
  if (config.norm.kind == "sync_batch") config.norm.kind = "batch";
  return config;
}

TuneRates measure_rounds(const Config& config, int rounds) {
  std::vector<Summary> runs;
  for (int round = 0; round < rounds; ++round) {
    runs.push_back(run_training(config, {.show_progress = false}).summary);
  }
  std::ranges::sort(runs, {}, &Summary::samples_per_second);
  const auto half = runs.size() / 2;
  const double upper = runs[half].samples_per_second;
  TuneRates rates;
  rates.samples_per_second =
      runs.size() % 2 == 1 ? upper : (runs[half - 1].samples_per_second + upper) / 2.0;
  rates.spread = runs.back().samples_per_second - runs.front().samples_per_second;
  for (const Summary& run : runs) {
    const double step = run.compute_s + run.exposed_comm_s + run.wait_s;
    rates.exposed_share += run.exposed_comm_s / step / rounds;
    rates.wait_share += run.wait_s / step / rounds;
    rates.host_bound = rates.host_bound || run.host_bound;
  }
  return rates;
}

/// Why the figures may be the machine's rather than the backend's; empty if they are not.
std::string host_bound_text(const Config& config, const TuneResult& result) {
  const bool late =
      result.reference.host_bound ||
      std::ranges::any_of(result.steps, [](const TuneStep& step) { return step.rates.host_bound; });
  if (late) {
    return "host-bound: this machine could not keep the emulated device's pace; raise "
           "compute.emulate\n";
  }
  const int cores = effective_cores();
  if (config.compute.emulate.count() > 0 || config.world * config.compute.threads <= cores) {
    return "";
  }
  return fmt::format(
      "host-bound: {} workers share {} cores, and compute hides the link; set compute.emulate (a "
      "step's time on the device that you have in mind)\n",
      config.world, cores);
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-_=.,:/+@%").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// `paceline train` with what the user gave, and then with what was found.
std::string train_command(const ConfigFlags& given, const std::vector<std::string>& found) {
  std::vector<std::string> words{"paceline", "train"};
  if (!given.file.empty()) words.insert(words.end(), {"--config", given.file});
  words.insert(words.end(), given.overrides.begin(), given.overrides.end());
  if (!given.sync.empty()) words.push_back("sync=" + given.sync);
  if (!given.world.empty()) words.push_back("world=" + given.world);
  words.insert(words.end(), found.begin(), found.end());
  std::ranges::transform(words, words.begin(), shell_word);
  return fmt::format("{}", fmt::join(words, " "));
}

/// "3: overlap off, buckets 1048576 B, ring, fp32, accumulate 1".
std::string candidate_label(int number, const Config& config) {
  return fmt::format(
      "{}: overlap {}, buckets {} B, {}, {}, accumulate {}", number,
      config.sync_options.overlap ? "on" : "off", config.bucket.size,
      config.sync == "ps" ? fmt::format("{} servers", config.ps.servers) : config.ring.algorithm,
      config.sync_options.wire, config.train.accumulate);
}

int run_tune(const TuneFlags& flags) {
  const Config config = user_config(flags.config);
  const std::string folder = flags.folder.empty()
                                 ? (std::filesystem::path(config.run.dir) / "tune").string()
                                 : flags.folder;
  const auto measure = [&](const std::string& what, const Config& candidate) {
    const TuneRates rates = measure_rounds(short_run(candidate, flags, folder), flags.rounds);
    if (!flags.quiet) {
      fmt::print(stderr, "{}: {:.0f} samples/s{}\n", what, rates.samples_per_second,
                 rates.host_bound ? ", host-bound" : "");
    }
    return rates;
  };
  validate_run(config);
  const TuneRates reference = measure("one worker", lone_worker(config));
  int number = 0;
  const TuneTools tools{validate_run, [&](const Config& candidate) {
                          return measure(candidate_label(++number, candidate), candidate);
                        }};
  const TuneResult result = tune_search(config, reference, tune_stages(config), tools);
  const std::string command = train_command(flags.config, result.flags);
  const std::string json = tune_json(result, command);
  write_file_atomically(std::filesystem::path(folder) / "tune.json", json);
  if (flags.json) {
    fmt::print("{}", json);
  } else {
    fmt::print("{}{}\n{}\n", tune_text(result), host_bound_text(config, result), command);
  }
  return std::ranges::any_of(
      result.trials, [](const TuneTrial& trial) { return trial.outcome == TuneOutcome::failed; });
}

}  // namespace

void add_tune_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand(
      "tune", "Tries what makes a run faster, shows what each gains and the flags to copy");
  auto flags = std::make_shared<TuneFlags>();
  add_config_options(*command, flags->config);
  command->add_option("--steps", flags->steps, "Steps of a run")->check(CLI::Range(1, 1000000));
  command->add_option("--rounds", flags->rounds, "Runs of a candidate")->check(CLI::Range(1, 100));
  command->add_option("--dir", flags->folder, "Folder of the runs and of tune.json");
  command->add_flag("--json", flags->json, "Print tune.json instead of the waterfall");
  command->add_flag("--quiet", flags->quiet, "No progress");
  command->footer(kTuneExamples);
  command->callback([flags, &action] { action = [flags] { return run_tune(*flags); }; });
}

}  // namespace paceline
