// SPDX-License-Identifier: Apache-2.0
// The small subcommands: doctor, keys, compat, and the hidden member.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <string>

#include "common/config/config_file.h"
#include "common/config/print.h"
#include "experiments/backends.h"
#include "experiments/commands.h"
#include "experiments/doctor.h"
#include "experiments/member.h"
#include "experiments/techniques.h"

namespace paceline {

void add_doctor_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("doctor", "What this machine has, and what limits runs");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "As JSON");
  command->callback([json, &action] { action = [json] { return doctor(std::cout, *json); }; });
}

void add_keys_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("keys", "All configuration keys");
  auto markdown = std::make_shared<bool>(false);
  command->add_flag("--markdown", *markdown, "As docs/configuration.md");
  command->callback([markdown, &action] {
    action = [markdown] {
      std::vector<NamedHelp> backends;
      for (const Backend& backend : all_backends()) {
        backends.push_back({std::string(backend.name), std::string(backend.summary)});
      }
      fmt::print("{}", *markdown ? configuration_markdown() : configuration_help(backends));
      return 0;
    };
  });
}

void add_compat_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("compat", "Which technique goes with which backend");
  auto markdown = std::make_shared<bool>(false);
  command->add_flag("--markdown", *markdown, "As docs/compatibility.md");
  command->callback([markdown, &action] {
    action = [markdown] {
      fmt::print("{}", compatibility_table(*markdown));
      return 0;
    };
  });
}

void add_member_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("member", "One process of a run (spawned by train)");
  command->group("");
  struct Flags {
    std::string config;
    MemberOptions options;
    std::string directory;
    bool quiet = false;
  };
  auto flags = std::make_shared<Flags>();
  command->add_option("--config", flags->config)->required();
  command->add_option("--member", flags->options.member)->required();
  command->add_option("--hub-host", flags->options.hub_host)->required();
  command->add_option("--hub-port", flags->options.hub_port)->required();
  command->add_option("--nonce", flags->options.nonce)->required();
  command->add_option("--run-directory", flags->directory)->required();
  command->add_flag("--quiet", flags->quiet);
  command->callback([flags, &action] {
    action = [flags] {
      flags->options.run_directory = flags->directory;
      flags->options.show_progress = !flags->quiet;
      return run_member(load_config(flags->config), flags->options);
    };
  });
}

}  // namespace paceline
