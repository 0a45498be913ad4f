// SPDX-License-Identifier: Apache-2.0
// One training run from configuration to finished run directory.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/observe/summary.h"
#include "experiments/launch_environment.h"

namespace paceline {

struct TrainOptions {
  bool show_progress = true;
};

struct FinishedRun {
  std::filesystem::path directory;
  Summary summary;
};

/// Validates, makes the run directory, spawns the members, waits, completes the directory and
/// writes DONE last. Throws ConfigError before a process starts, Error or Interrupted afterwards;
/// no process is left then, and no DONE.
[[nodiscard]] FinishedRun run_training(const Config& config, const TrainOptions& options);

/// The same where something else (mpirun, srun, torchrun, the user) started this process as one
/// rank: rank 0 hosts the hub and makes the run directory. Returns this rank's exit status; rank 0
/// reports what went wrong on standard error. Throws ConfigError before it joins: server processes
/// and backends whose workers are threads need a launcher of their own.
[[nodiscard]] int run_launched(Config config, const LaunchEnvironment& launched,
                               const TrainOptions& options);

}  // namespace paceline
