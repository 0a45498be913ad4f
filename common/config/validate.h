// SPDX-License-Identifier: Apache-2.0
// Checks that need several keys at once and no backend, made before any process starts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"

namespace paceline {

/// What the configuration cannot know by itself.
struct ValidationRules {
  std::span<const std::string_view> backends;  ///< values of sync
  /// Throws ConfigError for a link text that is not valid (comm's parse_link). May be empty.
  std::function<void(std::string_view key, std::string_view text)> check_link;
};

/// Throws ConfigError naming the key, the value and what is allowed.
void validate(const Config& config, const ValidationRules& rules);

/// Steps that a run surely has: samples over batch · accumulate · world, rounded up. Short batches
/// at the ends of epochs, and parts of the data that differ in size, make more; a Sampler knows.
[[nodiscard]] std::int64_t planned_steps(const Config& config) noexcept;

/// The rate at the end of warm-up: optimizer.lr times k (lr.scale=linear; Goyal et al. 2017) or √k
/// (sqrt; Krizhevsky 2014), k = samples per step of all workers / lr.base_batch.
[[nodiscard]] double peak_rate(const Config& config) noexcept;

/// "2,1,1": one number above 0 for each of `world` ranks, empty for an empty text. Throws
/// ConfigError naming data.shares.
[[nodiscard]] std::vector<double> parse_shares(std::string_view text, int world);

/// "compress = topk" or "sync.wire = fp16"; empty where gradients travel as they are.
[[nodiscard]] std::string travelling_format(const Config& config);

}  // namespace paceline
