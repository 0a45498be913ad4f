// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <string>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "common/config/value_text.h"
#include "experiments/commands.h"
#include "experiments/config_flags.h"
#include "experiments/memory_plan.h"

namespace paceline {

namespace {

constexpr const char* kMemoryExamples = R"(
Nothing is trained and nothing of the model is allocated.

Examples:
  paceline memory --model=resnet50 --optimizer=adam --world=8 data.name=synthetic data.shape=224x224x3 data.classes=1000 train.batch=256
  paceline memory --model=resnet50 --world=8 --device=cuda --memory=80GiB precision.compute=bf16 data.name=synthetic data.shape=224x224x3
  paceline memory --model=gpt --optimizer=adam --sync=sharded --world=4 data.name=text data.path=FILE gpt.width=768 --json

Any configuration key can follow as key=value; `paceline keys` lists them.)";

struct MemoryFlags {
  ConfigFlags config;
  std::string model;
  std::string optimizer;
  std::string device;
  std::string memory;
  int ranks_here = 0;
  bool json = false;
};

MemoryOptions memory_options(const MemoryFlags& flags) {
  MemoryOptions options;
  options.ranks_here = flags.ranks_here;
  if (flags.memory.empty()) return options;
  options.bytes = parse_size(flags.memory);
  if (!options.bytes || *options.bytes < 1) {
    throw ConfigError(
        fmt::format("--memory = \"{}\": allowed: a size such as 80GiB, 512MiB", flags.memory));
  }
  return options;
}

int run_memory(const MemoryFlags& flags) {
  Config config = resolve(flags.config);
  if (!flags.model.empty()) config.model = flags.model;
  if (!flags.optimizer.empty()) apply_override(config, "optimizer.name=" + flags.optimizer);
  if (!flags.device.empty()) apply_override(config, "device=" + flags.device);
  if (flags.ranks_here < 0) {
    throw ConfigError(
        fmt::format("--ranks-here = {}: allowed: 1 and more, or 0 for all", flags.ranks_here));
  }
  const MemoryPlan plan = plan_memory(config, memory_options(flags));
  fmt::print("{}", flags.json ? memory_json(plan) : memory_text(plan));
  return 0;
}

}  // namespace

void add_memory_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand(
      "memory", "Bytes that a rank of a run will hold, whether they fit, and what to do if not");
  auto flags = std::make_shared<MemoryFlags>();
  add_config_options(*command, flags->config);
  command->add_option("--model", flags->model, "The key model");
  command->add_option("--optimizer", flags->optimizer, "The key optimizer.name");
  command->add_option("--device", flags->device, "The key device; cuda needs no GPU here");
  command->add_option("--memory", flags->memory,
                      "What there is, as 80GiB: of a GPU, or of the machine whose ranks share it");
  command->add_option("--ranks-here", flags->ranks_here,
                      "Ranks on one machine, which share its memory, or with cuda.device a GPU's; "
                      "0: all");
  command->add_flag("--json", flags->json, "As JSON");
  command->footer(kMemoryExamples);
  command->callback([flags, &action] { action = [flags] { return run_memory(*flags); }; });
}

}  // namespace paceline
