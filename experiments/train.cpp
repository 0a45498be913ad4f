// SPDX-License-Identifier: Apache-2.0
#include "experiments/train.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/compress/power_sgd.h"
#include "common/config/print.h"
#include "common/core/trainer.h"
#include "common/observe/files.h"
#include "common/observe/run_directory.h"
#include "experiments/backends.h"
#include "experiments/launch.h"
#include "experiments/machine.h"
#include "experiments/member.h"
#include "experiments/worker.h"
#include "ring/nccl_backend.h"

namespace paceline {

namespace {

constexpr std::size_t kMostSummaryBytes = std::size_t{4} << 20;

LaunchPlan make_plan(const Config& config, const std::filesystem::path& directory,
                     const TrainOptions& options) {
  LaunchPlan plan;
  plan.spec = job_spec(config);
  plan.host = config.comm.host;
  plan.command = [directory, options, &config](const MemberAddress& address) {
    ProcessOptions process;
    process.arguments = {"member",
                         "--config",
                         (directory / "config.toml").string(),
                         "--member",
                         fmt::format("{}", address.member),
                         "--hub-host",
                         address.host,
                         "--hub-port",
                         fmt::format("{}", address.port),
                         "--nonce",
                         fmt::format("{}", address.nonce),
                         "--run-directory",
                         directory.string()};
    if (!options.show_progress) {
      process.arguments.emplace_back("--quiet");
    }
    // Read when the program starts, so setting it later is too late (libgomp).
    process.environment["OMP_NUM_THREADS"] = fmt::format("{}", config.compute.threads);
    for (const auto& [name, value] : nccl_variables(config)) {
      process.environment[name] = value;
    }
    return process;
  };
  return plan;
}

/// A bad file, and a run that its data or its model's shapes rule out, are told before a process
/// starts.
void check_data(const Config& config) {
  const Datasets data = load_datasets(config);
  check_against_data(config, data.train->size());
  if (config.compress.method == "powersgd") {
    const auto model = make_model(config.model, data.train->shape(), data.train->classes(),
                                  structure_options(config));
    check_power_sgd_rank(make_bucket_plan(*model, config), config.compress.rank);
  }
}

/// Takes over what rank 0 measured and writes DONE.
FinishedRun complete(const RunDirectory& directory) {
  const std::filesystem::path partial = directory.path() / kWorkerSummaryFile;
  FinishedRun run{directory.path(),
                  summary_from_json(read_text_file(partial, kMostSummaryBytes), partial.string())};
  std::filesystem::remove(partial);
  directory.finish(run.summary);
  return run;
}

void validate_launched(const Config& config, const LaunchEnvironment& launched) {
  validate_run(config);
  const Backend backend = find_backend(config.sync);
  if (server_processes(config, backend) > 0) {
    throw ConfigError(fmt::format(
        "ps.placement = {}: started by {}, there is nobody to start server processes; allowed: "
        "colocated",
        config.ps.placement, name_of(launched.source)));
  }
  if (workers_are_threads(config, backend) && launched.world > 1) {
    throw ConfigError(
        fmt::format("sync = {}: its workers are threads of one process, but {} started "
                    "{} processes; start one, with --world",
                    config.sync, name_of(launched.source), launched.world));
  }
}

[[noreturn]] void throw_failure(const JobResult& result) {
  if (result.signal != 0) {
    throw Interrupted(result.error, result.signal);
  }
  if (result.exit_status == 2) {
    throw ConfigError(result.error);
  }
  throw Error(result.error);
}

/// A hub that cannot listen names the key that says where.
JobResult launch_at_host(const LaunchPlan& plan) {
  try {
    return launch(plan);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("comm.host: {}", error.what()));
  }
}

/// As this program finds it, with what it sets for the run's members.
Environment run_environment(const Config& config) {
  Environment environment = read_environment(library_versions());
  for (const auto& [name, value] : nccl_variables(config)) {
    environment.variables[name] = value;
  }
  return environment;
}

std::unique_ptr<JobHub> host_hub(const JobSpec& spec, const LaunchEnvironment& launched) {
  try {
    return std::make_unique<JobHub>(spec, launched.hub_host, launched.hub_port);
  } catch (const ConfigError& error) {
    throw ConfigError(
        fmt::format("--hub (or PACELINE_HUB, MASTER_ADDR and MASTER_PORT): {}", error.what()));
  }
}

}  // namespace

FinishedRun run_training(const Config& config, const TrainOptions& options) {
  validate_run(config);
  if (sums_by_nccl(config)) {
    check_nccl(cuda_module(), config.world, nccl_user(config));
  }
  check_data(config);
  const RunDirectory directory = RunDirectory::create(config, run_environment(config));
  const JobResult result = launch_at_host(make_plan(config, directory.path(), options));
  if (result.exit_status != 0) {
    throw_failure(result);
  }
  return complete(directory);
}

int run_launched(Config config, const LaunchEnvironment& launched, const TrainOptions& options) {
  config.world = launched.world;
  validate_launched(config, launched);
  for (const auto& [name, value] : nccl_variables(config)) {
    ::setenv(name.c_str(), value.c_str(), 1);  // before any thread, and before NCCL starts
  }
  check_data(config);
  MemberOptions member;
  member.member = launched.rank;
  member.hub_host = launched.hub_host;
  member.hub_port = launched.hub_port;
  member.nonce = launched.nonce;
  member.show_progress = options.show_progress;
  if (launched.rank != 0) {
    return run_member(config, member);
  }
  if (options.show_progress) {
    fmt::print(stderr, "rank 0 of {} (world size from {})\n", launched.world,
               name_of(launched.source));
  }
  JobSpec spec = job_spec(config);
  spec.nonce = launched.nonce;
  const std::unique_ptr<JobHub> hub = host_hub(spec, launched);
  const RunDirectory directory = RunDirectory::create(config, run_environment(config));
  member.run_directory = directory.path();
  const int status = run_member(config, member);
  if (status != 0) {
    fmt::print(stderr, "paceline: {}\n", hub->failure());
    return status;
  }
  static_cast<void>(complete(directory));
  return 0;
}

}  // namespace paceline
