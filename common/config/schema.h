// SPDX-License-Identifier: Apache-2.0
// Every configuration key once: name, type, default, what is allowed, one line of help. Reading,
// printing, the documentation and --help all come from this table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/config/config.h"

namespace paceline {

enum class KeyKind : std::uint8_t { boolean, integer, number, text, choice, size, duration };

/// Where a key's value lives in a Config.
using KeyField = std::variant<bool& (*)(Config&), int& (*)(Config&), std::int64_t& (*)(Config&),
                              std::uint64_t& (*)(Config&), double& (*)(Config&),
                              std::string& (*)(Config&), Nanoseconds& (*)(Config&)>;

/// Bounds of a number; an open end is not allowed itself.
struct NumberBounds {
  double low = 0.0;
  double high = 0.0;
  bool open_low = false;
  bool open_high = false;
};

struct Key {
  std::string_view name;  ///< dotted: "train.batch"
  KeyKind kind = KeyKind::text;
  KeyField field;
  std::int64_t low = 0;                   ///< integer, size (bytes), duration (ns): inclusive
  std::int64_t high = 0;                  ///< likewise
  NumberBounds number;                    ///< of kind number
  std::vector<std::string_view> choices;  ///< of kind choice
  std::string_view help;
};

/// A value as read from TOML; text of an override is turned into one of these by its key's kind.
using RawValue = std::variant<bool, std::int64_t, double, std::string>;

/// All keys in the order in which they are printed; keys of one group are neighbours. Immutable.
[[nodiscard]] std::span<const Key> config_keys();

/// Null when there is none. "sync.backend" is another name of "sync"; "compress", "precision" and
/// "norm" are short for compress.method, precision.compute and norm.kind.
[[nodiscard]] const Key* find_key(std::string_view name);

/// The key that is nearest by edit distance, empty if nothing is near enough to be meant.
[[nodiscard]] std::string nearest_name(std::string_view name,
                                       std::span<const std::string_view> names);
/// "unknown key 'trian.batch' (did you mean 'train.batch'?)".
[[nodiscard]] std::string unknown_key_message(std::string_view name);

/// "an integer from 1 to 1024", "one of stop, continue", ...
[[nodiscard]] std::string allowed_text(const Key& key);

/// Sets the key. `where` ("file:3: " or empty) goes in front of a message.
/// Throws ConfigError naming the key, the value and what is allowed.
void set_value(Config& config, const Key& key, const RawValue& value, std::string_view where);

/// As it would follow `key =` in TOML.
[[nodiscard]] std::string value_as_toml(const Config& config, const Key& key);

}  // namespace paceline
