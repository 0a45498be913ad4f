// SPDX-License-Identifier: Apache-2.0
// Learning rate as a pure function of the step.
#pragma once

#include <cstdint>

namespace paceline {

enum class ScheduleKind : std::uint8_t { constant, step, cosine };

struct LrSchedule {
  ScheduleKind kind = ScheduleKind::constant;
  double base = 0.0;              ///< where warm-up ends and decay begins
  double warmup_from = 0.0;       ///< rate before the first step
  std::int64_t total_steps = 1;   ///< cosine reaches `minimum` at the last step
  std::int64_t warmup_steps = 0;  ///< step t < warmup: from + (base − from)·(t+1)/warmup
  std::int64_t step_every = 1;    ///< step: factor gamma after each so many steps
  double gamma = 0.1;
  double minimum = 0.0;

  /// Rate of step t >= 0. The decay counts from the end of warm-up.
  [[nodiscard]] double at(std::int64_t t) const noexcept;
};

}  // namespace paceline
