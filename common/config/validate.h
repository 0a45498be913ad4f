// SPDX-License-Identifier: Apache-2.0
// Checks that need several keys at once and no backend, made before any process starts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "common/config/config.h"

namespace paceline {

/// What the configuration cannot know by itself.
struct ValidationRules {
  std::span<const std::string_view> backends;  ///< values of sync
  /// Throws ConfigError for a link text that is not valid (comm's parse_link). May be empty.
  std::function<void(std::string_view key, std::string_view text)> check_link;
  /// Why device=cuda cannot be used, empty if it can; called only where that is asked for. May be
  /// empty itself: the program knows no GPU.
  std::function<std::string()> why_not_cuda = {};
};

/// Throws ConfigError naming the key, the value and what is allowed.
void validate(const Config& config, const ValidationRules& rules);

/// Steps of a run: samples over batch · world, rounded up.
[[nodiscard]] std::int64_t planned_steps(const Config& config) noexcept;

}  // namespace paceline
