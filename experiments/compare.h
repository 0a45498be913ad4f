// SPDX-License-Identifier: Apache-2.0
// Runs every configuration of a comparison file and prints one table.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/config/config_file.h"
#include "common/observe/compare_table.h"

namespace paceline {

struct CompareOptions {
  std::filesystem::path file;
  std::vector<std::string> overrides;
  bool force = false;  ///< redo runs that are done
  bool real = false;   ///< no emulation; one worker per core
  bool quiet = false;  ///< no progress
  TableFormat format = TableFormat::text;
};

/// Runs that have DONE and an unchanged resolved configuration are taken from their directory.
/// A run that the machine or the options rule out (--real) is named and left out. Returns the exit
/// status: 0, or 1 when a run failed (the others are still run and shown). Throws ConfigError and
/// Interrupted.
[[nodiscard]] int compare(const CompareOptions& options);

/// What --real makes of a configuration: no emulated device, links or stragglers, at most `cores`
/// workers.
[[nodiscard]] Config without_emulation(Config config, int cores);

}  // namespace paceline
