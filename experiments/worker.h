// SPDX-License-Identifier: Apache-2.0
// What one rank of a run does: data, model, backend, training, and its share of the run directory.
#pragma once

#include <filesystem>
#include <memory>

#include "common/base/fault.h"
#include "common/data/dataset.h"
#include "common/sync/backend.h"

namespace paceline {

/// Loads what config.data names. Throws ConfigError naming the file.
[[nodiscard]] Datasets load_datasets(const Config& config);

/// The shaped links of the job, or null when both are "none". Collective over `everyone`.
[[nodiscard]] std::unique_ptr<NicFabric> join_fabric(const Config& config, const Topology& topology,
                                                     Communicator& everyone);

/// Where rank 0 leaves what it measured, for the launcher to put into summary.json.
inline constexpr const char* kWorkerSummaryFile = "summary.partial.json";

/// Trains as context.rank; collective over the workers (and servers, through the backend). Rank 0
/// leaves kWorkerSummaryFile in `run_directory`, every rank its step log and trace.
/// `show_progress`: rank 0 reports on stderr.
void run_worker(const WorkerContext& context, const Backend& backend, const Datasets& data,
                FaultInjector& faults, const std::filesystem::path& run_directory,
                bool show_progress);

}  // namespace paceline
