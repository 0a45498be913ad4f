// SPDX-License-Identifier: Apache-2.0
// Which efficiency technique goes with which backend: a table that the validation itself fills in.
#pragma once

#include <string>
#include <vector>

#include "common/config/config.h"

namespace paceline {

/// A row: settings that turn one technique on, such as "optimizer.name=lars".
struct Technique {
  std::vector<std::string> settings;
  /// The settings with commas between them.
  [[nodiscard]] std::string name() const;
};

/// A column: a backend, and what chooses its variant.
struct BackendVariant {
  std::string name;  ///< "ring", "ps (asp)"
  std::vector<std::string> settings;
};

[[nodiscard]] std::vector<Technique> all_techniques();
[[nodiscard]] std::vector<BackendVariant> all_variants();

/// A small run (3 workers, single: 1) with the technique under the backend. Not yet validated.
[[nodiscard]] Config technique_config(const Technique& technique, const BackendVariant& variant);

/// Why validate_run refuses the cell; empty where it accepts.
[[nodiscard]] std::string refusal(const Technique& technique, const BackendVariant& variant);

/// The whole table: "yes" or the number of a footnote with the refusal. Markdown is what
/// docs/compatibility.md holds. Ends with a newline.
[[nodiscard]] std::string compatibility_table(bool markdown);

}  // namespace paceline
