// SPDX-License-Identifier: Apache-2.0
#include "ring/shard_state.h"

#include <fmt/format.h>

#include <string_view>

#include "common/base/error.h"

namespace paceline {

namespace {

constexpr std::string_view kShardRank = "sharded.rank";
constexpr std::string_view kShardWorld = "sharded.world";
constexpr std::string_view kShardCut = "sharded.cut";

std::string_view collectives_of(ShardCut cut) noexcept {
  return cut == ShardCut::nccl ? "nccl" : "host";
}

}  // namespace

void save_shard(const ShardState& shard, StateWriter& writer) {
  writer.put(kShardRank, shard.rank);
  writer.put(kShardWorld, shard.world);
  writer.put(kShardCut, static_cast<std::int64_t>(shard.cut));
}

void check_shard(const ShardState& shard, StateReader& reader) {
  const std::int64_t rank = reader.get(kShardRank);
  const std::int64_t world = reader.get(kShardWorld);
  const ShardCut cut = reader.get(kShardCut) == 0 ? ShardCut::host : ShardCut::nccl;
  if (rank != shard.rank || world != shard.world) {
    throw Error(fmt::format("rank {} of {}: the state is the shard of rank {} of {}", shard.rank,
                            shard.world, rank, world));
  }
  if (cut != shard.cut && world > 1) {
    throw Error(fmt::format(
        "rank {} of {}: the state is of shards as cuda.collectives = {} cuts them{}, not {}",
        shard.rank, shard.world, collectives_of(cut), cut == ShardCut::host ? " (and the CPU)" : "",
        collectives_of(shard.cut)));
  }
}

}  // namespace paceline
