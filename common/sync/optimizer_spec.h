// SPDX-License-Identifier: Apache-2.0
// What crosses processes about an optimizer: plain data. Each owner of weights builds its own state
// from it (core/optimizer.h).
#pragma once

#include <cstdint>

namespace paceline {

enum class OptimizerKind : std::uint8_t { sgd, adam, lars, lamb, onebit_adam };

/// SGD:  v <- momentum·v + g;  w <- w − lr·(nesterov ? g + momentum·v : v), as PyTorch writes it
///       (Sutskever et al. 2013 up to the place of lr).
/// Adam: Kingma & Ba 2015, bias-corrected.
/// LARS: SGD whose step of each tensor is scaled by trust·|w| / (|g| + weight_decay·|w|)
///       (You, Gitman & Ginsburg 2017); tensors of one dimension are not scaled and not decayed.
/// LAMB: Adam's direction plus weight_decay·w, scaled per tensor to |w| (You et al. 2020); tensors
///       of one dimension as in LARS.
/// 1-bit Adam (Tang et al. 2021): Adam for freeze_step updates, then its variance is frozen.
/// In both g includes weight_decay·w (L2). Trivially copyable; sent as bytes between processes of
/// one build.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::sgd;
  bool nesterov = false;
  float momentum = 0.0F;
  float weight_decay = 0.0F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float trust = 0.001F;
  float clip_norm = 0.0F;  ///< largest global norm of the mean gradient; 0: no clipping
  bool skip_nonfinite =
      false;  ///< an update whose gradient holds inf or NaN is left out as a whole
  std::int64_t freeze_step = 100;

  /// Whether an update depends on more than its own elements, so that it waits for all buckets.
  [[nodiscard]] bool whole_gradient() const noexcept {
    return clip_norm > 0.0F || skip_nonfinite || kind == OptimizerKind::lars ||
           kind == OptimizerKind::lamb;
  }
};

}  // namespace paceline
