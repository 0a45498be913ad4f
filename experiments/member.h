// SPDX-License-Identifier: Apache-2.0
// One process of a job: joins the hub, then is a worker, all workers as threads, or a server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/comm/job.h"
#include "common/config/config.h"

namespace paceline {

struct MemberOptions {
  int member = 0;  ///< workers first, then servers
  std::string hub_host = "127.0.0.1";
  std::uint16_t hub_port = 0;
  std::uint64_t nonce = 0;
  std::filesystem::path run_directory;  ///< member 0's holds for all
  bool show_progress = true;
};

/// What the hub and every member of the run must agree on (nonce left 0).
[[nodiscard]] JobSpec job_spec(const Config& config);

/// Processes of the job that are workers: config.world, or 1 when the workers are threads.
[[nodiscard]] int worker_processes(const Config& config);

/// Runs this process's part. Returns its exit status: what goes wrong is told to the hub, whose
/// process reports it. Throws HubLost when there is no hub to tell, and what goes wrong before.
[[nodiscard]] int run_member(const Config& config, const MemberOptions& options);

}  // namespace paceline
