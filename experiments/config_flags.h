// SPDX-License-Identifier: Apache-2.0
// The flags of subcommands that start from one configuration.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/config/config.h"

namespace paceline {

/// Empty where the user said nothing.
struct ConfigFlags {
  std::string file;
  std::string sync;
  std::string world;
  std::vector<std::string> overrides;
};

/// --config, --sync, --world and key=value; `flags` outlives the command.
void add_config_options(CLI::App& command, ConfigFlags& flags);

/// The file, then key=value, then --sync and --world. Throws ConfigError; not validated yet.
[[nodiscard]] Config resolve(const ConfigFlags& flags);

}  // namespace paceline
