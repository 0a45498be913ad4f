// SPDX-License-Identifier: Apache-2.0
// What a configuration makes of a run besides what trainer.h declares.
#pragma once

#include <cstdint>

#include "common/config/config.h"
#include "common/core/lr_schedule.h"
#include "common/data/sampler.h"

namespace paceline {

/// Of a run of so many steps.
[[nodiscard]] LrSchedule make_schedule(const Config& config, std::int64_t steps);
[[nodiscard]] Sampler make_sampler(const Config& config, std::int64_t train_samples, int rank);

}  // namespace paceline
