// SPDX-License-Identifier: Apache-2.0
// Reads configurations: TOML text, `a.b=c` overrides, and comparison files.
//
// In TOML a key may be written in its table ([train] batch = 64), dotted (train.batch = 64) or
// quoted ("train.batch" = 64), once only. The backend's key is both a value and a group: write
// `sync = "ring"` with its options quoted ("sync.exact" = true), or a [sync] table with `backend`.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"

namespace paceline {

/// One run of a comparison.
struct NamedConfig {
  std::string name;  ///< unique in its file; letters, digits, '.', '_' and '-'
  Config config;     ///< run.name is `name` unless the file sets it
};

/// A comparison: base keys at the top, then a [[run]] table per run with `name` and what differs.
struct CompareFile {
  std::string name;  ///< top-level `name`, else the file's stem
  std::vector<NamedConfig> runs;
};

/// Each of these throws ConfigError, its message one line that names the file and line, the key,
/// the value and what is allowed. Values that need more than one key are left to validate().

/// `base` overridden by the TOML `text`. `source` names the text in messages.
[[nodiscard]] Config parse_config(std::string_view text, std::string_view source,
                                  const Config& base = {});
/// Reads a file (of at most 1 MiB).
[[nodiscard]] Config load_config(const std::filesystem::path& file, const Config& base = {});

/// Applies "key=value"; spaces around the key are ignored, the value is taken as it is.
void apply_override(Config& config, std::string_view assignment);
void apply_overrides(Config& config, std::span<const std::string> assignments);

/// `overrides` ("key=value") win over the file in every run.
[[nodiscard]] CompareFile parse_compare(std::string_view text, std::string_view source,
                                        std::span<const std::string> overrides = {});
[[nodiscard]] CompareFile load_compare(const std::filesystem::path& file,
                                       std::span<const std::string> overrides = {});

}  // namespace paceline
