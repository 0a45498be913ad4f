// SPDX-License-Identifier: Apache-2.0
#include "common/config/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/sha256.h"
#include "common/config/schema.h"

namespace paceline {
namespace {

std::string_view group_of(std::string_view name) {
  return name.substr(0, name.find('.') == std::string_view::npos ? 0 : name.find('.'));
}

std::string_view kind_name(KeyKind kind) {
  switch (kind) {
    case KeyKind::boolean:
      return "boolean";
    case KeyKind::integer:
      return "integer";
    case KeyKind::number:
      return "number";
    case KeyKind::text:
    case KeyKind::choice:
      return "text";
    case KeyKind::size:
      return "size";
    case KeyKind::duration:
      return "duration";
  }
  return "";
}

std::string escaped_cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) {
    text.insert(at, 1, '\\');
  }
  return text;
}

}  // namespace

std::string to_toml(const Config& config) {
  std::string out;
  for (const Key& key : config_keys()) {
    if (key.name.find('.') == std::string_view::npos && key.name != "sync") {
      out += fmt::format("{} = {}\n", key.name, value_as_toml(config, key));
    }
  }
  out += fmt::format("\n[sync]\nbackend = {}\n", value_as_toml(config, *find_key("sync")));
  std::string_view group = "sync";
  for (const Key& key : config_keys()) {
    const std::string_view own = group_of(key.name);
    if (own.empty()) continue;
    if (own != group) out += fmt::format("\n[{}]\n", own);
    group = own;
    out += fmt::format("{} = {}\n", key.name.substr(own.size() + 1), value_as_toml(config, key));
  }
  return out;
}

std::string canonical_text(const Config& config) {
  std::string out;
  for (const Key& key : config_keys()) {
    if (group_of(key.name) == "run") continue;
    out += fmt::format("{} = {}\n", key.name, value_as_toml(config, key));
  }
  return out;
}

std::string config_digest(const Config& config) {
  return sha256_hex(canonical_text(config));
}

std::vector<std::string> changed_keys(const Config& config) {
  const Config defaults;
  std::vector<std::string> changed;
  for (const Key& key : config_keys()) {
    const std::string value = value_as_toml(config, key);
    if (value != value_as_toml(defaults, key))
      changed.push_back(fmt::format("{}={}", key.name, value));
  }
  return changed;
}

std::string configuration_markdown() {
  std::string out =
      "# Configuration\n\n"
      "Generated from the tables in `common/config/keys_*.cpp`; do not edit.\n\n"
      "Keys are set in a TOML file (`--config FILE`) and by `key=value` arguments, which win over "
      "the file;\n`--print-config` shows what results. In a file, `train.batch` may be written "
      "as\n\n"
      "```toml\n[train]\nbatch = 64\n```\n\n"
      "or `train.batch = 64` or `\"train.batch\" = 64`. `sync` is a value and a group at once: "
      "write "
      "`sync = \"ring\"`\nand its options quoted (`\"sync.exact\" = true`), or a `[sync]` table "
      "with "
      "`backend = \"ring\"` and `exact = true`.\n\n"
      "Sizes are bytes or a number with B, kB, MB, GB, KiB, MiB, GiB. Durations are a number with "
      "ns, "
      "us, ms, s, m or h.\n\n"
      "A file for `paceline compare` has the base keys and then one `[[run]]` table for each run, "
      "with "
      "a `name` and\nthe keys that differ (there, keys of `run.*` are written quoted):\n\n"
      "```toml\nmodel = \"cnn\"\nworld = 4\n\n[[run]]\nname = \"ps\"\nsync = \"ps\"\nps.servers = "
      "1\n```\n";
  std::string_view group = "none";
  const Config defaults;
  for (const Key& key : config_keys()) {
    const std::string_view own = group_of(key.name);
    if (own != group) {
      out += own.empty() ? std::string("\n## General\n\n") : fmt::format("\n## {}\n\n", own);
      out += "| Key | Type | Default | Allowed | Meaning |\n|---|---|---|---|---|\n";
    }
    group = own;
    out += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", key.name, kind_name(key.kind),
                       value_as_toml(defaults, key), escaped_cell(allowed_text(key)),
                       escaped_cell(std::string(key.help)));
  }
  return out;
}

std::string configuration_help(const std::vector<NamedHelp>& backends) {
  std::string out = "Values of sync:\n";
  for (const auto& [name, help] : backends) out += fmt::format("  {:<26} {}\n", name, help);
  out += "\nKeys (key=value):\n";
  const Config defaults;
  for (const Key& key : config_keys()) {
    out += fmt::format("  {:<26} {} [{}]\n", key.name, key.help, value_as_toml(defaults, key));
    const bool obvious = key.kind == KeyKind::boolean || key.kind == KeyKind::text;
    if (!obvious) out += fmt::format("  {:<26}   {}\n", "", allowed_text(key));
  }
  return out;
}

}  // namespace paceline
