// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "common/base/error.h"
#include "experiments/commands.h"
#include "experiments/compare.h"

namespace paceline {

namespace {

constexpr const char* kCompareExamples = R"(
Examples:
  paceline compare experiments/configs/quickstart.toml
  paceline compare experiments/configs/quickstart.toml train.samples=6400 --force
  paceline compare experiments/configs/quickstart.toml --real --format markdown

A run whose resolved configuration is unchanged and that is complete is not repeated.)";

TableFormat read_format(const std::string& name) {
  const std::map<std::string, TableFormat> formats{
      {"text", TableFormat::text}, {"markdown", TableFormat::markdown}, {"csv", TableFormat::csv}};
  const auto found = formats.find(name);
  if (found == formats.end()) {
    throw ConfigError(fmt::format("--format = \"{}\": allowed are text, markdown and csv", name));
  }
  return found->second;
}

}  // namespace

void add_compare_command(CLI::App& program, Action& action) {
  auto* command =
      program.add_subcommand("compare", "Trains under every backend of a file, prints one table");
  auto options = std::make_shared<CompareOptions>();
  auto folder = std::make_shared<std::string>();
  command->add_option("file", options->file, "TOML file with [[run]] tables")->required();
  command->add_option("overrides", options->overrides, "Configuration as key=value, for every run");
  command->add_flag("--force", options->force, "Redo runs that are done");
  command->add_flag("--real", options->real, "No emulated device or links, one worker per core");
  command->add_flag("--quiet", options->quiet, "The table alone");
  command->add_option("--dir", *folder, "Folder of the run directories (run.dir)");
  command->add_option_function<std::string>(
      "--format", [options](const std::string& name) { options->format = read_format(name); },
      "text, markdown or csv");
  command->footer(kCompareExamples);
  command->callback([options, folder, &action] {
    action = [options, folder] {
      if (!folder->empty()) {
        options->overrides.push_back("run.dir=" + *folder);
      }
      return compare(*options);
    };
  });
}

}  // namespace paceline
