// SPDX-License-Identifier: Apache-2.0
// Whether something else started this process as one rank of a job, and what it says about it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace paceline {

using EnvironmentMap = std::map<std::string, std::string>;

/// In the order in which they win.
enum class LaunchSource : std::uint8_t { none, flags, paceline, torchrun, open_mpi, slurm, pmi };

/// "own flags", "PACELINE_* variables", "torchrun", "Open MPI", "Slurm", "PMI"; "nothing".
[[nodiscard]] std::string_view name_of(LaunchSource source);

/// --rank, --world, --hub and --local-rank as given.
struct LaunchFlags {
  std::optional<std::string> rank;
  std::optional<std::string> world;
  std::optional<std::string> local_rank;
  std::optional<std::string> hub;  ///< HOST:PORT, [IPV6]:PORT or HOST
};

inline constexpr std::uint16_t kDefaultHubPort = 29510;

struct LaunchEnvironment {
  LaunchSource source = LaunchSource::none;
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  /// Where rank 0 hosts the hub and the others find it.
  std::string hub_host = "127.0.0.1";
  std::uint16_t hub_port = kDefaultHubPort;
  /// The same in all ranks of a job and, where the launcher names its jobs, in no other job's.
  std::uint64_t nonce = 0;
};

/// Looks at flags, then at `environment` (pure). Source none: nothing started this process as a
/// rank. Throws ConfigError naming the variable, its value and what is allowed: half of a pair is
/// missing, no number, rank >= world, local rank >= world, no address of a hub on another node.
[[nodiscard]] LaunchEnvironment detect_launch(const EnvironmentMap& environment,
                                              const LaunchFlags& flags = {});

[[nodiscard]] EnvironmentMap current_environment();

/// The first host of a Slurm node list: "gpu[03-05,9],login" gives "gpu03". Throws ConfigError.
[[nodiscard]] std::string first_slurm_host(std::string_view list);

}  // namespace paceline
