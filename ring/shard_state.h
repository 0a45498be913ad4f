// SPDX-License-Identifier: Apache-2.0
// Which shard a rank's saved state is, so that no other is taken for it.
#pragma once

#include <cstdint>

#include "common/sync/state_io.h"

namespace paceline {

/// How buckets are cut into shards: host: as ring_chunk() does; nccl: equal blocks, and on every
/// rank the elements that are left over.
enum class ShardCut : std::uint8_t { host, nccl };

struct ShardState {
  int rank = 0;
  int world = 1;
  ShardCut cut = ShardCut::host;
};

void save_shard(const ShardState& shard, StateWriter& writer);

/// Throws Error, which says what it is, where the state is not that of `shard`.
void check_shard(const ShardState& shard, StateReader& reader);

}  // namespace paceline
