// SPDX-License-Identifier: Apache-2.0
// What a hub answers to a process that says who it is, and how it calls members.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/comm/job.h"
#include "common/comm/job_frame.h"

namespace paceline {

/// Why the process is no member of the job at `port`; other_job where it wants another one.
[[nodiscard]] std::optional<JobEnd> mistake_in(const Hello& hello, const JobSpec& job,
                                               std::uint16_t port);

/// "rank 1", "rank 1 and server 0", "rank 1, rank 2 and server 0".
[[nodiscard]] std::string list_names(const std::vector<int>& members, int world);

}  // namespace paceline
