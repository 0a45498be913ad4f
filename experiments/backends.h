// SPDX-License-Identifier: Apache-2.0
// The registry: one explicit table of all backends. To add one, add its row in backends.cpp.
#pragma once

#include <string_view>
#include <vector>

#include "common/sync/backend.h"

namespace paceline {

/// Built once by the caller and passed on; order is that of --help.
[[nodiscard]] std::vector<Backend> all_backends();

/// Throws ConfigError naming `sync`, the value and the names that exist.
[[nodiscard]] Backend find_backend(std::string_view name);

/// Everything that can be refused before a process starts: ranges, cross-field rules, link texts,
/// and the backend's own rules. Throws ConfigError.
void validate_run(const Config& config);

/// The same for a run on another machine: device=cuda is taken without a GPU here.
void validate_elsewhere(const Config& config);

/// Server processes that the run needs besides its workers.
[[nodiscard]] int server_processes(const Config& config, const Backend& backend);

/// Whether the workers are threads of one process (the backend's nature, or comm.transport=inproc).
[[nodiscard]] bool workers_are_threads(const Config& config, const Backend& backend);

}  // namespace paceline
