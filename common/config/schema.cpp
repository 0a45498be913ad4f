// SPDX-License-Identifier: Apache-2.0
#include "common/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "common/base/error.h"
#include "common/config/key_builders.h"
#include "common/config/value_text.h"

namespace paceline {
namespace {

std::vector<Key> make_keys() {
  std::vector<Key> all;
  keys::add_general(all);
  keys::add_model(all);
  keys::add_training(all);
  keys::add_technique(all);
  keys::add_communication(all);
  keys::add_machine(all);
  return all;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string raw_as_text(const RawValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* real = std::get_if<double>(&value)) return format_number(*real);
  std::string text = std::get<std::string>(value);
  constexpr std::size_t kShown = 80;
  if (text.size() > kShown) {
    text.resize(kShown);
    text += "...";
  }
  return toml_quoted(text);
}

/// The value as an int64 (integer, size in bytes, duration in ns), empty for another type.
std::optional<std::int64_t> as_int64(const Key& key, const RawValue& value) {
  std::optional<std::int64_t> result;
  const auto* text = std::get_if<std::string>(&value);
  const auto* whole = std::get_if<std::int64_t>(&value);
  if (whole != nullptr) {
    const bool counts = key.kind == KeyKind::integer || key.kind == KeyKind::size;
    if (counts || (key.kind == KeyKind::duration && *whole == 0)) result = *whole;
  } else if (text != nullptr && key.kind == KeyKind::size) {
    result = parse_size(*text);
  } else if (text != nullptr && key.kind == KeyKind::duration) {
    if (const auto parsed = parse_duration(*text)) result = parsed->count();
  }
  return result;
}

std::optional<double> as_number(const RawValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return std::nullopt;
}

bool within(const NumberBounds& bounds, double value) {
  return (bounds.open_low ? value > bounds.low : value >= bounds.low) &&
         (bounds.open_high ? value < bounds.high : value <= bounds.high);
}

/// Stores into the field; false when the value is of the wrong type or out of range.
bool store(Config& config, const Key& key, const RawValue& value) {
  switch (key.kind) {
    case KeyKind::boolean: {
      const auto* flag = std::get_if<bool>(&value);
      if (flag == nullptr) return false;
      std::get<bool& (*)(Config&)>(key.field)(config) = *flag;
      return true;
    }
    case KeyKind::number: {
      const auto real = as_number(value);
      if (!real || !within(key.number, *real)) return false;
      std::get<double& (*)(Config&)>(key.field)(config) = *real;
      return true;
    }
    case KeyKind::text:
    case KeyKind::choice: {
      const auto* text = std::get_if<std::string>(&value);
      if (text == nullptr || !printable_utf8(*text)) return false;
      if (key.kind == KeyKind::choice && std::ranges::find(key.choices, *text) == key.choices.end())
        return false;
      std::get<std::string& (*)(Config&)>(key.field)(config) = *text;
      return true;
    }
    default: {
      const auto whole = as_int64(key, value);
      if (!whole || *whole < key.low || *whole > key.high) return false;
      std::visit(
          [&](auto field) {
            using Value = std::remove_reference_t<decltype(field(config))>;
            if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>)
              field(config) = static_cast<Value>(*whole);
            else if constexpr (std::is_same_v<Value, Nanoseconds>)
              field(config) = Nanoseconds(*whole);
          },
          key.field);
      return true;
    }
  }
  return false;
}

}  // namespace

std::span<const Key> config_keys() {
  static const std::vector<Key> keys = make_keys();
  return keys;
}

const Key* find_key(std::string_view name) {
  if (name == "sync.backend") name = "sync";
  if (name == "compress") name = "compress.method";
  if (name == "precision") name = "precision.compute";
  if (name == "norm") name = "norm.kind";
  const auto keys = config_keys();
  const auto found = std::ranges::find(keys, name, &Key::name);
  return found == keys.end() ? nullptr : &*found;
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> names) {
  std::string_view best;
  // Longer inputs cannot be a slip of a key; this also bounds the work on untrusted text.
  std::size_t least = name.size() > 64 ? 0 : std::max<std::size_t>(3, name.size() / 3 + 1);
  for (const std::string_view candidate : names) {
    const std::size_t distance = name.size() > 64 ? least : edit_distance(name, candidate);
    if (distance < least && distance < candidate.size()) {
      least = distance;
      best = candidate;
    }
  }
  return std::string(best);
}

std::string unknown_key_message(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Key& key : config_keys()) names.push_back(key.name);
  std::string near = nearest_name(name, names);
  if (near.empty()) {  // the right last part in the wrong group
    for (const std::string_view candidate : names) {
      if (candidate.ends_with(fmt::format(".{}", name))) near = candidate;
    }
  }
  std::string shown(name.substr(0, 80));
  const std::string hint = near.empty() ? std::string("see docs/configuration.md for all keys")
                                        : fmt::format("did you mean '{}'?", near);
  return fmt::format("unknown key {} ({})", toml_quoted(shown), hint);
}

std::string allowed_text(const Key& key) {
  switch (key.kind) {
    case KeyKind::boolean:
      return "true or false";
    case KeyKind::integer:
      if (key.high == keys::kMost) return fmt::format("an integer from {} up", key.low);
      return fmt::format("an integer from {} to {}", key.low, key.high);
    case KeyKind::number:
      return fmt::format("a number {} {:g} and {} {:g}", key.number.open_low ? "above" : "from",
                         key.number.low, key.number.open_high ? "below" : "up to", key.number.high);
    case KeyKind::text:
      return "a text without control characters";
    case KeyKind::choice:
      return fmt::format("one of {}", fmt::join(key.choices, ", "));
    case KeyKind::size:
      return fmt::format("a size from {} to {}, such as 65536, 1MB or 25MiB", format_size(key.low),
                         format_size(key.high));
    case KeyKind::duration:
      return fmt::format("a duration from {} to {}, such as 50us, 120ms or 2s",
                         format_duration(Nanoseconds(key.low)),
                         format_duration(Nanoseconds(key.high)));
  }
  return {};
}

void set_value(Config& config, const Key& key, const RawValue& value, std::string_view where) {
  if (!store(config, key, value)) {
    throw ConfigError(fmt::format("{}{} = {} is not allowed: it must be {}", where, key.name,
                                  raw_as_text(value), allowed_text(key)));
  }
}

std::string value_as_toml(const Config& config, const Key& key) {
  Config copy = config;  // the table's accessors give mutable references
  return std::visit(
      [&](auto field) -> std::string {
        const auto& value = field(copy);
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>)
          return value ? "true" : "false";
        else if constexpr (std::is_same_v<Value, std::string>)
          return toml_quoted(value);
        else if constexpr (std::is_same_v<Value, double>)
          return format_number(value);
        else if constexpr (std::is_same_v<Value, Nanoseconds>)
          return toml_quoted(format_duration(value));
        else if (key.kind == KeyKind::size) {
          const std::string size = format_size(static_cast<std::int64_t>(value));
          return size.back() == 'B' ? toml_quoted(size) : size;
        } else
          return fmt::format("{}", value);
      },
      key.field);
}

}  // namespace paceline