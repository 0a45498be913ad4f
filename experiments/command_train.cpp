// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/config/print.h"
#include "common/observe/compare_table.h"
#include "common/observe/staleness_lines.h"
#include "experiments/backends.h"
#include "experiments/commands.h"
#include "experiments/config_flags.h"
#include "experiments/train.h"

namespace paceline {

namespace {

constexpr const char* kTrainExamples = R"(
Examples:
  paceline train --sync=ring --world=4 train.batch=64 model=mlp
  paceline train --sync=ps --world=4 ps.servers=2 link.inter=1gbit,50us topology.ranks_per_node=1
  paceline train --config my.toml optimizer.lr=0.1 --print-config

  mpirun -n 4 paceline train --sync=ring          under Open MPI, Slurm, torchrun or PMI as well
  paceline train --rank=0 --world=2 --hub=10.0.0.1:29510 comm.host=10.0.0.1      by hand

Any configuration key can follow as key=value; `paceline keys` lists them.)";

struct TrainFlags {
  ConfigFlags config;
  bool print_config = false;
  bool quiet = false;
  LaunchFlags launch;
};

int run(TrainFlags flags) {
  if (flags.launch.rank && !flags.config.world.empty()) {
    flags.launch.world = flags.config.world;
  }
  const Config config = resolve(flags.config);
  const LaunchEnvironment launched = detect_launch(current_environment(), flags.launch);
  if (launched.source != LaunchSource::none && !flags.print_config) {
    return run_launched(config, launched, {!flags.quiet});
  }
  validate_run(config);
  if (flags.print_config) {
    fmt::print("{}", to_toml(config));
    return 0;
  }
  const FinishedRun run = run_training(config, {!flags.quiet});
  if (!flags.quiet) {
    fmt::print("{}{}run: {}\n", compare_table({run.summary}, TableFormat::text),
               staleness_lines({run.summary}), run.directory.string());
  }
  return 0;
}

}  // namespace

void add_train_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("train", "One run: spawns the workers and trains");
  auto flags = std::make_shared<TrainFlags>();
  add_config_options(*command, flags->config);
  const auto launch_option = [&](const char* name, std::optional<std::string>& value,
                                 const char* help) {
    command->add_option_function<std::string>(
        name, [&value](const std::string& text) { value = text; }, help);
  };
  launch_option("--rank", flags->launch.rank,
                "This process is that rank; start the others yourself");
  launch_option("--local-rank", flags->launch.local_rank, "Its number on this machine");
  launch_option("--hub", flags->launch.hub, "HOST:PORT where rank 0 listens for the others");
  command->add_flag("--print-config", flags->print_config,
                    "Show the resolved configuration, do not run");
  command->add_flag("--quiet", flags->quiet, "No progress, no table");
  std::string footer = "\nBackends:\n";
  for (const Backend& backend : all_backends()) {
    footer += fmt::format("  {:14} {}\n", backend.name, backend.summary);
  }
  command->footer(footer + kTrainExamples);
  command->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace paceline
