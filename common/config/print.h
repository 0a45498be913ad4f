// SPDX-License-Identifier: Apache-2.0
// Writes configurations: the resolved one as TOML, what identifies it, and the documentation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"

namespace paceline {

/// All keys as valid TOML, in the table's order; parse_config() gives the same Config back.
[[nodiscard]] std::string to_toml(const Config& config);

/// One "key = value" line per key that can change a result: everything but run.* (where output
/// goes). Equal text, equal run.
[[nodiscard]] std::string canonical_text(const Config& config);

/// SHA-256 of canonical_text(), 64 hexadecimal digits.
[[nodiscard]] std::string config_digest(const Config& config);

/// "train.batch=64" for each key that differs from its default.
[[nodiscard]] std::vector<std::string> changed_keys(const Config& config);

/// A backend's name and its line of help.
struct NamedHelp {
  std::string name;
  std::string help;
};

/// docs/configuration.md.
[[nodiscard]] std::string configuration_markdown();

/// The keys as plain text for --help; `backends` are the values of `sync`.
[[nodiscard]] std::string configuration_help(const std::vector<NamedHelp>& backends);

}  // namespace paceline
