// SPDX-License-Identifier: Apache-2.0
// The program `paceline`: picks the subcommand and turns exceptions into one line and a status.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "common/base/error.h"
#include "common/observe/environment.h"
#include "experiments/commands.h"

namespace {

constexpr const char* kExamples = R"(
Examples:
  paceline compare experiments/configs/quickstart.toml     every backend, one table
  paceline train --sync=ring --world=4 model=mlp           one run, four ranks
  paceline train --sync=ps --world=4 ps.servers=2          the same with two servers
  paceline tune --world=4 link.inter=1gbit,50us            tries what makes it faster; the flags to copy
  paceline memory --model=resnet50 --optimizer=adam        what a rank will hold, and whether it fits
  paceline bench allreduce --transport=shm --world=2       nccl-tests' table
  paceline doctor                                          what limits runs on this machine
  paceline keys                                            all configuration keys
  paceline compat                                          which technique goes with which backend

Exit status: 0 success, 1 the run failed, 2 bad configuration, 128+n ended by signal n.)";

/// One line, as for every other mistake.
int report_flags(const CLI::ParseError& error) {
  fmt::print(stderr, "paceline: {} (paceline --help shows what is allowed)\n", error.what());
  return 2;
}

int report(const std::exception& error, int status) {
  fmt::print(stderr, "paceline: {}\n", error.what());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program{
      "Trains one model under interchangeable ways of synchronising gradients, and "
      "shows which is faster, which converges better, and why."};
  program.name("paceline");
  program.require_subcommand(1);
  program.set_version_flag("--version", paceline::program_version());
  program.footer(kExamples);
  paceline::Action action;
  paceline::add_train_command(program, action);
  paceline::add_compare_command(program, action);
  paceline::add_tune_command(program, action);
  paceline::add_memory_command(program, action);
  paceline::add_bench_command(program, action);
  paceline::add_doctor_command(program, action);
  paceline::add_keys_command(program, action);
  paceline::add_compat_command(program, action);
  paceline::add_data_command(program, action);
  paceline::add_member_command(program, action);
  try {
    program.parse(argc, argv);
    return action();
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? program.exit(error) : report_flags(error);
  } catch (const paceline::Interrupted& error) {
    return report(error, 128 + error.signal());
  } catch (const paceline::ConfigError& error) {
    return report(error, 2);
  } catch (const std::exception& error) {
    return report(error, 1);
  }
}
