// SPDX-License-Identifier: Apache-2.0
#include "common/core/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace paceline {

double LrSchedule::at(std::int64_t t) const noexcept {
  if (t < warmup_steps) {
    return warmup_from +
           (base - warmup_from) * static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
  }
  const std::int64_t decayed = t - warmup_steps;
  switch (kind) {
    case ScheduleKind::constant:
      break;
    case ScheduleKind::step: {
      const std::int64_t drops = decayed / std::max<std::int64_t>(1, step_every);
      return base * std::pow(gamma, static_cast<double>(drops));
    }
    case ScheduleKind::cosine: {
      const std::int64_t span = std::max<std::int64_t>(1, total_steps - 1 - warmup_steps);
      const double progress =
          std::min(1.0, static_cast<double>(decayed) / static_cast<double>(span));
      return minimum + (base - minimum) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    }
  }
  return base;
}

}  // namespace paceline
