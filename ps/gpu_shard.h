// SPDX-License-Identifier: Apache-2.0
// A server's shard in a GPU's memory (ps.device=cuda).
//
// Weights and optimizer state are one flat arena each, in device memory. An update copies the
// gradient sum from page-locked memory to the device, runs the optimizer's kernel once per range
// (once per key but for LARS) and copies the new weights into the page-locked version that answers
// carry, all on one stream. The sum is made on the host: its pushes come from sockets into host
// memory, and one sum crosses the bus where W gradients would have to.
#pragma once

#include "common/core/gpu/gpu.h"
#include "ps/shard.h"

namespace paceline {

/// On the device of `options` of `module`; that and the options' abort outlive what is made. Throws
/// ConfigError naming ps.device where the module is not usable, or cuda.device where it has no such
/// GPU. What it makes throws Error naming the arena, the bytes wanted and those that are free where
/// the device's memory does not suffice; its waits for the GPU end as GpuWaits says.
[[nodiscard]] ShardMaker gpu_shard_maker(const CudaModule& module, const GpuOptions& options);

}  // namespace paceline
