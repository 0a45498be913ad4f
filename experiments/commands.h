// SPDX-License-Identifier: Apache-2.0
// The subcommands of `paceline`. Each adds its flags to the program and, when chosen, runs; what it
// throws is printed by main as one line.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace paceline {

/// Set by the subcommand that the user chose; returns the exit status.
using Action = std::function<int()>;

void add_train_command(CLI::App& program, Action& action);
void add_compare_command(CLI::App& program, Action& action);
void add_tune_command(CLI::App& program, Action& action);
void add_memory_command(CLI::App& program, Action& action);
void add_bench_command(CLI::App& program, Action& action);
void add_doctor_command(CLI::App& program, Action& action);
void add_keys_command(CLI::App& program, Action& action);
void add_compat_command(CLI::App& program, Action& action);
void add_data_command(CLI::App& program, Action& action);
/// Hidden: what run_training spawns.
void add_member_command(CLI::App& program, Action& action);

}  // namespace paceline
