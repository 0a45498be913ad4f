// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "common/config/print.h"
#include "common/observe/compare_table.h"
#include "experiments/backends.h"
#include "experiments/commands.h"
#include "experiments/train.h"

namespace paceline {

namespace {

constexpr const char* kExamples = R"(
Examples:
  paceline train --sync=ring --world=4 train.batch=64 model=mlp
  paceline train --sync=ps --world=4 ps.servers=2 link.inter=1gbit,50us topology.ranks_per_node=1
  paceline train --config my.toml optimizer.lr=0.1 --print-config

Any configuration key can follow as key=value; `paceline keys` lists them.)";

struct TrainFlags {
  std::string file;
  std::string sync;
  int world = -1;
  bool print_config = false;
  bool quiet = false;
  std::vector<std::string> overrides;
};

Config resolve(const TrainFlags& flags) {
  Config config = flags.file.empty() ? Config{} : load_config(flags.file);
  apply_overrides(config, flags.overrides);
  if (!flags.sync.empty()) {
    config.sync = flags.sync;
  }
  if (flags.world != -1) {
    apply_override(config, fmt::format("world={}", flags.world));
  }
  return config;
}

int run(const TrainFlags& flags) {
  const Config config = resolve(flags);
  validate_run(config);
  if (flags.print_config) {
    fmt::print("{}", to_toml(config));
    return 0;
  }
  const FinishedRun run = run_training(config, {!flags.quiet});
  if (!flags.quiet) {
    fmt::print("{}run: {}\n", compare_table({run.summary}, TableFormat::text),
               run.directory.string());
  }
  return 0;
}

}  // namespace

void add_train_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("train", "One run: spawns the workers and trains");
  auto flags = std::make_shared<TrainFlags>();
  command->add_option("--config", flags->file, "TOML file to start from");
  command->add_option("--sync", flags->sync,
                      "Backend; changes how gradients are synchronised only");
  command->add_option("--world", flags->world, "Number of workers");
  command->add_flag("--print-config", flags->print_config,
                    "Show the resolved configuration, do not run");
  command->add_flag("--quiet", flags->quiet, "No progress, no table");
  command->add_option("overrides", flags->overrides, "Configuration as key=value");
  std::string footer = "\nBackends:\n";
  for (const Backend& backend : all_backends()) {
    footer += fmt::format("  {:14} {}\n", backend.name, backend.summary);
  }
  command->footer(footer + kExamples);
  command->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace paceline
