// SPDX-License-Identifier: Apache-2.0
// The row of sync=nccl in the backend table.
#pragma once

#include <map>
#include <string>

#include "common/core/cuda_module.h"
#include "common/sync/backend.h"

namespace paceline {

/// sync=nccl: allreduce between GPUs by NCCL; nccl.sharded and nccl.hierarchical change its shape.
[[nodiscard]] Backend nccl_backend();

/// The variables that the keys nccl.* stand for, to be set before NCCL starts; empty for other
/// backends.
[[nodiscard]] std::map<std::string, std::string> nccl_variables(const Config& config);

/// Throws ConfigError where `world` ranks, all on this machine, are more than its GPUs, or NCCL
/// cannot be used.
void check_nccl(const CudaModule& module, int world);

}  // namespace paceline
