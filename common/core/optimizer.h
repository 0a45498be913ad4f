// SPDX-License-Identifier: Apache-2.0
// Applies updates to a range of weights. Whoever owns weights (a ring rank, a server's shard, a
// Hogwild! worker) owns one of these for them; element-wise, so ranges may be cut anywhere and give
// the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/buffer.h"
#include "common/core/update_info.h"
#include "common/sync/optimizer_spec.h"
#include "common/sync/state_io.h"

namespace paceline {

/// Bytes of state that such an Optimizer holds.
[[nodiscard]] std::size_t optimizer_state_bytes(const OptimizerSpec& spec, std::size_t elements);

/// Rules that need norms of whole tensors or of the whole gradient go through ArenaOptimizer.
/// State (momentum, or Adam's two moments) for `elements` weights, zero at first. Not thread-safe;
/// disjoint ranges may be applied from different threads.
class Optimizer {
 public:
  Optimizer(const OptimizerSpec& spec, std::size_t elements);

  /// weights_out = update of weights_in by `gradient` for elements [begin, begin + gradient.size())
  /// of this optimizer's range. `weights_in` and `weights_out` may be the same memory, else must
  /// not overlap; all spans have the same length.
  void apply(std::size_t begin, std::span<const float> weights_in, std::span<float> weights_out,
             std::span<const float> gradient, const UpdateInfo& info);

  /// LAMB's first half: the moments advance, and `gradient` becomes the direction u that the
  /// weights then move against; the weights stay. Range as in apply.
  void lamb_direction(std::size_t begin, std::span<const float> weights, std::span<float> gradient,
                      const UpdateInfo& info);

  /// Momentum or Adam's first moment of [begin, begin + count), Adam's second moment likewise;
  /// empty where the rule has none. For techniques that replace them (1-bit Adam).
  [[nodiscard]] std::span<float> moment(int index, std::size_t begin, std::size_t count);

  [[nodiscard]] const OptimizerSpec& spec() const noexcept { return spec_; }
  /// Bytes of state.
  [[nodiscard]] std::size_t state_bytes() const noexcept { return state_.size(); }

  void save(StateWriter& writer) const;
  void load(StateReader& reader);

 private:
  [[nodiscard]] kernels::UpdateOperands operands(std::size_t begin, const float* in, float* out,
                                                 std::span<const float> gradient) noexcept;
  void check(std::size_t begin, std::size_t count, std::size_t in, std::size_t out) const;

  OptimizerSpec spec_;
  std::size_t elements_;
  Buffer state_;
};

}  // namespace paceline
