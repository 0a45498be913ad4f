// SPDX-License-Identifier: Apache-2.0
// The factor of the loss that keeps small gradients above fp16's smallest number (Micikevicius et
// al. 2018).
#pragma once

#include <cstdint>

#include "common/config/config.h"

namespace paceline {

/// Powers of two, so that scaling and unscaling are exact. Dynamic: a step whose gradients
/// overflowed is left out and halves the scale, `growth_every` good steps in a row double it; from
/// 1 to 2^24. The outcome of a step is known one step later, so a step may overflow at a scale that
/// has been left already: it changes nothing. Ranks that are told the same have the same scale.
class LossScaler {
 public:
  /// loss_scale auto: dynamic for compute=fp16, none otherwise.
  explicit LossScaler(const PrecisionConfig& config);

  /// Whether updates with inf or NaN are to be left out.
  [[nodiscard]] bool enabled() const noexcept { return kind_ != Kind::none; }
  /// Of the step that comes; 1 for none.
  [[nodiscard]] float scale() const noexcept { return scale_; }
  /// Closes a step that ran with scale(). `previous_skipped`: the update of the step before it was
  /// left out.
  void finish_step(bool previous_skipped) noexcept;

 private:
  enum class Kind : std::uint8_t { none, fixed, dynamic };
  [[nodiscard]] float next_scale(bool previous_skipped) noexcept;

  Kind kind_;
  float scale_;
  float previous_scale_ = 0.0F;  // of the step whose outcome comes next; 0: there is none yet
  std::int64_t growth_every_;
  std::int64_t good_steps_ = 0;  // in a row, at scale_
};

}  // namespace paceline
