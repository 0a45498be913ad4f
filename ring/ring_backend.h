// SPDX-License-Identifier: Apache-2.0
// The rows of the backend table that collectives serve.
#pragma once

#include "common/sync/backend.h"

namespace paceline {

/// sync=ring: allreduce between all workers; ring.algorithm picks how.
[[nodiscard]] Backend ring_backend();
/// sync=hierarchical: sums within a node before anything crosses to another. Needs
/// topology.ranks_per_node. With device=cuda NCCL sums, or the host (cuda.collectives).
[[nodiscard]] Backend hierarchical_backend();
/// sync=sharded: as ring, but the optimizer's state is shared out between the workers (ZeRO-1).
/// With device=cuda as hierarchical.
[[nodiscard]] Backend sharded_backend();
/// sync=single: one worker, nothing to synchronise.
[[nodiscard]] Backend single_backend();

}  // namespace paceline
