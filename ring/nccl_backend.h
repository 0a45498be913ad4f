// SPDX-License-Identifier: Apache-2.0
// The row of sync=nccl in the backend table, and which configurations sum by NCCL.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/core/cuda_module.h"
#include "common/sync/backend.h"
#include "ring/nccl_communicator.h"

namespace paceline {

/// sync=nccl: flat allreduce between GPUs by NCCL.
[[nodiscard]] Backend nccl_backend();

/// Whether NCCL sums this run's gradients: those of sync=nccl, and with device=cuda those of
/// sync=hierarchical and sync=sharded as cuda.collectives says; auto is NCCL unless a setting needs
/// the host. The configuration alone decides, so that all ranks decide alike.
[[nodiscard]] bool sums_by_nccl(const Config& config);

/// Who sums the gradients, "nccl" or "host", where NCCL could; empty where it cannot.
[[nodiscard]] std::optional<std::string> collectives_of(const Config& config);

/// One line that says who sums, and which setting made it the host; empty where cuda.collectives
/// has no say.
[[nodiscard]] std::string collectives_note(const Config& config);

/// Throws ConfigError for a cuda.collectives where nobody has a choice.
void check_collectives(const Config& config);

/// Where NCCL sums: throws ConfigError for a setting that it cannot follow. Of sync=hierarchical
/// and sync=sharded the host's form has been checked before, so it can stand in.
void check_nccl_settings(const Config& config);

/// What check_nccl() and the like name in their errors.
[[nodiscard]] NcclUser nccl_user(const Config& config);

/// The variables that the keys nccl.* stand for, to be set before NCCL starts; empty where it does
/// not sum.
[[nodiscard]] std::map<std::string, std::string> nccl_variables(const Config& config);

/// Throws ConfigError where `world` ranks, all on this machine, are more than its GPUs, or NCCL
/// cannot be used.
void check_nccl(const CudaModule& module, int world, const NcclUser& user);

}  // namespace paceline
