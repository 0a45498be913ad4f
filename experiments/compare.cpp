// SPDX-License-Identifier: Apache-2.0
#include "experiments/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "common/base/error.h"
#include "common/observe/files.h"
#include "common/observe/run_directory.h"
#include "common/observe/staleness_lines.h"
#include "experiments/backends.h"
#include "experiments/machine.h"
#include "experiments/train.h"

namespace paceline {

namespace {

void say(const CompareOptions& options, const std::string& line) {
  if (!options.quiet) {
    fmt::print(stderr, "{}\n", line);
  }
}

/// The runs to do. Every configuration is validated before the first starts; with --real, a run
/// that this machine rules out is left out instead.
std::vector<NamedConfig> planned_runs(const CompareOptions& options) {
  std::vector<NamedConfig> runs;
  for (NamedConfig run : load_compare(options.file, options.overrides).runs) {
    if (options.real) {
      run.config = without_emulation(run.config, effective_cores());
    }
    try {
      validate_run(run.config);
    } catch (const ConfigError& error) {
      if (!options.real) {
        throw ConfigError(fmt::format("run \"{}\": {}", run.name, error.what()));
      }
      say(options, fmt::format("{}: left out: {}", run.name, error.what()));
      continue;
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

Summary failed_row(const std::string& name, const Config& config) {
  Summary row;
  row.name = name;
  row.backend = config.sync;
  row.world_size = config.world;
  row.target_accuracy = config.train.target_accuracy;
  row.failed = true;
  return row;
}

}  // namespace

Config without_emulation(Config config, int cores) {
  config.compute.emulate = Nanoseconds(0);
  config.link.inter = "none";
  config.link.intra = "none";
  config.fault.slow_rank.clear();
  config.fault.jitter = "none";
  config.world = std::min(config.world, cores);
  return config;
}

int compare(const CompareOptions& options) {
  const std::vector<NamedConfig> runs = planned_runs(options);
  std::vector<Summary> summaries;
  std::vector<std::filesystem::path> directories;  // empty for a run that failed
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& [name, config] = runs[i];
    const std::string heading = fmt::format("[{}/{}] {}", i + 1, runs.size(), name);
    const auto done = options.force ? std::nullopt : find_finished(config.run.dir, config);
    if (done) {
      say(options, fmt::format("{}: unchanged, taken from {}", heading, done->string()));
      summaries.push_back(load_summary(*done / "summary.json"));
      directories.push_back(*done);
      continue;
    }
    say(options,
        fmt::format("{}: {} worker{}", heading, config.world, config.world == 1 ? "" : "s"));
    try {
      FinishedRun run = run_training(config, {!options.quiet});
      summaries.push_back(std::move(run.summary));
      directories.push_back(std::move(run.directory));
    } catch (const Interrupted&) {
      throw;
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& error) {
      fmt::print(stderr, "paceline: {}: {}\n", name, error.what());
      summaries.push_back(failed_row(name, config));
      directories.emplace_back();
    }
  }
  set_speedups(summaries);
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    if (!summaries[i].failed) {
      write_file_atomically(directories[i] / "summary.json", summary_to_json(summaries[i]));
    }
  }
  fmt::print("{}", compare_table(summaries, options.format));
  if (options.format == TableFormat::text) {
    fmt::print("{}", staleness_lines(summaries));
  }
  return std::ranges::any_of(summaries, &Summary::failed) ? 1 : 0;
}

}  // namespace paceline
