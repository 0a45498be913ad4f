// SPDX-License-Identifier: Apache-2.0
// One training run from configuration to finished run directory.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/observe/summary.h"

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

}  // namespace paceline
