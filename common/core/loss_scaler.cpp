// SPDX-License-Identifier: Apache-2.0
#include "common/core/loss_scaler.h"

#include <algorithm>

namespace paceline {

namespace {

constexpr float kSmallest = 1.0F;
constexpr float kLargest = 0x1p24F;

}  // namespace

LossScaler::LossScaler(const PrecisionConfig& config)
    : kind_(config.loss_scale == "fixed"                              ? Kind::fixed
            : config.loss_scale == "dynamic"                          ? Kind::dynamic
            : config.loss_scale == "auto" && config.compute == "fp16" ? Kind::dynamic
                                                                      : Kind::none),
      scale_(kind_ == Kind::none ? 1.0F : static_cast<float>(config.initial_scale)),
      growth_every_(config.growth_every) {}

void LossScaler::finish_step(bool previous_skipped) noexcept {
  const float used = scale_;
  if (kind_ == Kind::dynamic && previous_scale_ > 0.0F) {
    scale_ = next_scale(previous_skipped);
  }
  previous_scale_ = used;
}

float LossScaler::next_scale(bool previous_skipped) noexcept {
  if (previous_skipped) {
    good_steps_ = 0;
    return previous_scale_ > scale_ ? scale_ : std::max(kSmallest, scale_ / 2.0F);
  }
  if (previous_scale_ != scale_ || ++good_steps_ < growth_every_) {
    return scale_;
  }
  good_steps_ = 0;
  return std::min(kLargest, scale_ * 2.0F);
}

}  // namespace paceline
