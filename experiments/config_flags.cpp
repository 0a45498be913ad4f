// SPDX-License-Identifier: Apache-2.0
#include "experiments/config_flags.h"

#include "common/config/config_file.h"

namespace paceline {

void add_config_options(CLI::App& command, ConfigFlags& flags) {
  command.add_option("--config", flags.file, "TOML file to start from");
  command.add_option("--sync", flags.sync, "Backend; changes how gradients are synchronised only");
  command.add_option("--world", flags.world, "Number of workers");
  command.add_option("overrides", flags.overrides, "Configuration as key=value");
}

Config resolve(const ConfigFlags& flags) {
  Config config = flags.file.empty() ? Config{} : load_config(flags.file);
  apply_overrides(config, flags.overrides);
  if (!flags.sync.empty()) {
    config.sync = flags.sync;
  }
  if (!flags.world.empty()) {
    apply_override(config, "world=" + flags.world);
  }
  return config;
}

}  // namespace paceline
