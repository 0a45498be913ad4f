// SPDX-License-Identifier: Apache-2.0
// What crosses processes about an optimizer: plain data. Each owner of weights builds its own state
// from it (core/optimizer.h).
#pragma once

#include <cstdint>

namespace paceline {

enum class OptimizerKind : std::uint8_t { sgd, adam };

/// SGD:  v <- momentum·v + g;  w <- w − lr·(nesterov ? g + momentum·v : v), as PyTorch writes it
///       (Sutskever et al. 2013 up to the place of lr).
/// Adam: Kingma & Ba 2015, bias-corrected.
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
};

}  // namespace paceline
