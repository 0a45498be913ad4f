// SPDX-License-Identifier: Apache-2.0
// What a server owns: the weights of its keys and their optimizer's state. A Shard knows where they
// live and updates them there; whoever pushes, when a push counts and who is answered is
// ServerState's.
//
//   pushes (host) -> one gradient sum -> Shard::update -> new version -> answers (host)
//
// Sums, codecs, norms and delay compensation make the gradient before it reaches a Shard, on the
// host, block by block; so every rule of the server is the same on every device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/core/update_info.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/optimizer_spec.h"
#include "common/sync/state_io.h"
#include "common/sync/synchronizer.h"
#include "ps/payload.h"
#include "ps/weight_store.h"

namespace paceline {

/// Elements of a gradient made at a time: those and their weights stay in the first caches.
inline constexpr std::size_t kGradientBlock = 4096;

/// Calls visit(begin, count) for blocks of at most kGradientBlock elements that make up `range`.
template <typename Visit>
void for_blocks(const Range& range, Visit visit) {
  for (std::size_t begin = range.begin; begin < range.end; begin += kGradientBlock) {
    visit(begin, std::min(kGradientBlock, range.end - begin));
  }
}

/// Gives elements [begin, begin + count) of a key's gradient sum, count <= kGradientBlock; valid
/// until the next call.
using GradientBlocks = std::function<std::span<const float>(std::size_t begin, std::size_t count)>;

/// An update of a range of a key's elements.
struct RangeUpdate {
  Range range;
  UpdateInfo info;
};

/// Keys are numbered as in the Partition; those of other servers have no elements here. Made and
/// used by the server's thread.
class Shard {
 public:
  virtual ~Shard() = default;
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  /// A key's newest weights in host memory, wherever else they live: answers carry them.
  [[nodiscard]] std::span<const float> weights(std::size_t key) const {
    return versions_.at(key).current();
  }
  /// The same as a message's payload, which stays as it is.
  [[nodiscard]] Payload share(std::size_t key) const { return versions_.at(key).share(); }
  virtual void set_weights(std::size_t key, std::span<const float> values) = 0;

  /// Makes the next version of a key: `updates`, whose ranges cover the key and do not overlap, by
  /// `gradient`, asked once for every element. weights(key) stay until all of `gradient` that
  /// overlaps them was asked for. Throws what `gradient` throws.
  virtual void update(std::size_t key, std::span<const RangeUpdate> updates,
                      const GradientBlocks& gradient) = 0;

  /// A key's optimizer state, in the names of Optimizer::save on every device.
  virtual void save_optimizer(std::size_t key, StateWriter& writer) = 0;
  virtual void load_optimizer(std::size_t key, StateReader& reader) = 0;

  /// `staging` are the versions in host memory that are not the weights themselves.
  [[nodiscard]] virtual MemoryUse memory() const = 0;

 protected:
  /// By key.
  explicit Shard(std::span<const std::size_t> elements);
  [[nodiscard]] WeightStore& versions(std::size_t key) { return versions_.at(key); }
  [[nodiscard]] std::size_t version_bytes() const noexcept;

 private:
  std::vector<WeightStore> versions_;
};

/// Called on the server's thread, with the elements of every key.
using ShardMaker = std::function<std::unique_ptr<Shard>(const OptimizerSpec& spec,
                                                        std::span<const std::size_t> elements)>;

/// In host memory: the newest version is the weights.
[[nodiscard]] std::unique_ptr<Shard> make_host_shard(const OptimizerSpec& spec,
                                                     std::span<const std::size_t> elements);

}  // namespace paceline
