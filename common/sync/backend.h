// SPDX-License-Identifier: Apache-2.0
// What a backend registers: one row of the table in experiments/backends.cpp. No static
// initialisers; the table is the registry.
#pragma once

#include <memory>
#include <string_view>

#include "common/base/abort.h"
#include "common/comm/communicator.h"
#include "common/comm/emulated_nic.h"
#include "common/comm/topology.h"
#include "common/config/config.h"
#include "common/sync/synchronizer.h"

namespace paceline {

class StatisticsReducer;  // common/core/statistics_reducer.h

/// What a worker's Synchronizer is made from. Everything outlives the Synchronizer.
struct WorkerContext {
  int rank;
  const Config& config;
  const Topology& topology;
  Communicator& workers;   ///< the workers of the job, by rank
  Communicator& everyone;  ///< the workers, then the server processes (the same group without them)
  NicFabric* fabric;       ///< null: the links are not shaped
  AbortToken& abort;
  /// Of the model's layers; null: they share none. A backend may take the sums over (use()).
  StatisticsReducer* statistics = nullptr;
};

/// What a server process runs with. Its member index in `everyone` is world + server.
struct ServerContext {
  int server;
  const Config& config;
  const Topology& topology;
  Communicator& everyone;
  NicFabric* fabric;
  AbortToken& abort;
};

enum class WorkerKind : std::uint8_t { process, thread };

struct Backend {
  std::string_view name;     ///< value of --sync
  std::string_view summary;  ///< one line for --help
  Traits traits;             ///< of the default options
  WorkerKind workers = WorkerKind::process;
  /// Whether, with device=cuda, bind takes the Gpu; null: never. Where it does not, the replica is
  /// on the host, and staged (core/gpu/host_staging.h).
  bool (*binds_gpu)(const Config&) = nullptr;
  /// Throws ConfigError for options that make no sense together. Null: whatever needs more than
  /// plain fp32 gradients (compress, sync.wire, sync.exact, 1-bit Adam) is refused.
  void (*validate)(const Config&) = nullptr;
  /// Server processes of its own that the job needs. Null: none.
  int (*servers)(const Config&) = nullptr;
  /// Collective over the workers (and servers).
  std::unique_ptr<Synchronizer> (*make)(const WorkerContext&) = nullptr;
  /// Body of a server process; returns when all workers are done. Null if servers is.
  void (*serve)(const ServerContext&) = nullptr;

  [[nodiscard]] bool takes_gpu(const Config& config) const {
    return binds_gpu != nullptr && binds_gpu(config);
  }
};

}  // namespace paceline
