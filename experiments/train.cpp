// SPDX-License-Identifier: Apache-2.0
#include "experiments/train.h"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl_version.h>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/config/print.h"
#include "common/observe/files.h"
#include "common/observe/run_directory.h"
#include "experiments/backends.h"
#include "experiments/launch.h"
#include "experiments/member.h"
#include "experiments/worker.h"

namespace paceline {

namespace {

constexpr std::size_t kMostSummaryBytes = std::size_t{4} << 20;

LaunchPlan make_plan(const Config& config, const std::filesystem::path& directory,
                     const TrainOptions& options) {
  LaunchPlan plan;
  plan.spec.world = worker_processes(config);
  plan.spec.servers = server_processes(config, find_backend(config.sync));
  plan.spec.config_digest = sha256_hex(canonical_text(config));
  plan.spec.timeout = config.comm.timeout;
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
    return process;
  };
  return plan;
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

std::map<std::string, std::string> library_versions() {
  return {{"oneDNN",
           fmt::format("{}.{}.{}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)}};
}

}  // namespace

FinishedRun run_training(const Config& config, const TrainOptions& options) {
  validate_run(config);
  static_cast<void>(load_datasets(config));  // a bad file is told before a process starts
  const RunDirectory directory = RunDirectory::create(config, read_environment(library_versions()));
  const JobResult result = launch(make_plan(config, directory.path(), options));
  if (result.exit_status != 0) {
    throw_failure(result);
  }
  const std::filesystem::path partial = directory.path() / kWorkerSummaryFile;
  FinishedRun run{directory.path(),
                  summary_from_json(read_text_file(partial, kMostSummaryBytes), partial.string())};
  std::filesystem::remove(partial);
  directory.finish(run.summary, config.world);
  return run;
}

}  // namespace paceline
