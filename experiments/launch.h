// SPDX-License-Identifier: Apache-2.0
// Runs a job on this machine: its hub in this process, its members as child processes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/comm/job.h"
#include "experiments/process.h"

namespace paceline {

/// Where a member finds its job.
struct MemberAddress {
  int member = 0;  ///< workers first, then servers
  std::string host;
  std::uint16_t port = 0;
  std::uint64_t nonce = 0;
};

struct LaunchPlan {
  JobSpec spec;  ///< nonce 0: a random one is drawn
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< of the hub; 0: a free one
  std::function<ProcessOptions(const MemberAddress&)> command;
  Nanoseconds interrupt_grace = std::chrono::milliseconds(1200);  ///< SIGTERM to SIGKILL on Ctrl-C
};

struct JobResult {
  int exit_status =
      0;              ///< 0; 1 the run failed; 2 bad configuration; 128+n signal n to this process
  int signal = 0;     ///< n, 0 without one
  std::string error;  ///< one line: the first cause. Empty on success
  std::vector<ExitStatus> members;
};

/// Returns when no member is left. After the first failure the others get 0.2 · timeout to end by
/// themselves, then SIGTERM, 0.1 · timeout later SIGKILL; stopped ones SIGKILL at once. SIGINT and
/// SIGTERM to this process are blocked meanwhile and passed on as SIGTERM. Should this process be
/// killed, the kernel kills the members. Throws ConfigError when the port is taken, Error when a
/// member cannot be started; no member is left then either. Any thread that outlives the job.
[[nodiscard]] JobResult launch(const LaunchPlan& plan);

}  // namespace paceline
