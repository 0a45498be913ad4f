// SPDX-License-Identifier: Apache-2.0
#include "common/config/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "common/base/error.h"
#include "common/config/schema.h"
#include "common/config/toml_guard.h"
#include "common/config/value_text.h"

namespace paceline {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 20;

std::string location(std::string_view source, const toml::source_region& region) {
  return fmt::format("{}:{}: ", source, region.begin.line);
}

toml::table parse_toml(std::string_view text, std::string_view source) {
  if (text.size() > kMostFileBytes) {
    throw ConfigError(fmt::format("{}: {} bytes; a configuration has at most {}", source,
                                  text.size(), kMostFileBytes));
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (const auto bad = find_unsafe_byte(text)) {
    const std::string_view before = text.substr(0, *bad);
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    throw ConfigError(fmt::format(
        "{}:{}:{}: characters outside ASCII, in UTF-8, may stand in comments and in strings of one "
        "line only",
        source, std::ranges::count(before, '\n') + 1, before.size() - line_start + 1));
  }
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    std::string reason(error.description());
    std::ranges::replace(reason, '\n', ' ');
    throw ConfigError(fmt::format("{}:{}:{}: {}", source, error.source().begin.line,
                                  error.source().begin.column, reason));
  }
}

/// The value as the schema takes it; empty for dates, arrays and tables.
std::optional<RawValue> raw_value(const toml::node& node) {
  if (const auto* flag = node.as_boolean()) return RawValue(flag->get());
  if (const auto* whole = node.as_integer()) return RawValue(whole->get());
  if (const auto* real = node.as_floating_point()) return RawValue(real->get());
  if (const auto* text = node.as_string()) return RawValue(text->get());
  return std::nullopt;
}

/// Sets keys from one table and remembers which, so that none is given twice in two spellings.
class TableReader {
 public:
  TableReader(Config& config, std::string_view source) : config_(config), source_(source) {}

  void read(const toml::table& table, const std::string& prefix,
            std::span<const std::string_view> skipped = {}) {
    for (const auto& [key, node] : table) {
      if (std::ranges::find(skipped, key.str()) != skipped.end()) continue;
      read_key(prefix + std::string(key.str()), node);
    }
  }

 private:
  void read_key(const std::string& name, const toml::node& node) {
    const std::string where = location(source_, node.source());
    if (const auto* inner = node.as_table()) {
      if (!is_group(name)) throw ConfigError(where + not_a_group(name));
      read(*inner, name + ".");
      return;
    }
    const Key* key = find_key(name);
    if (key == nullptr) {
      if (is_group(name)) {
        throw ConfigError(fmt::format("{}{} is a group of keys, not a value", where, name));
      }
      throw ConfigError(where + unknown_key_message(name));
    }
    const auto value = raw_value(node);
    if (!value) {
      throw ConfigError(fmt::format("{}{} must be {}", where, key->name, allowed_text(*key)));
    }
    const auto [earlier, first] = set_.try_emplace(std::string(key->name), node.source());
    if (!first) {  // a table is read in the order of its keys, not of its lines
      const bool later = node.source().begin.line > earlier->second.begin.line;
      throw ConfigError(fmt::format("{}{} is given twice",
                                    location(source_, later ? node.source() : earlier->second),
                                    key->name));
    }
    set_value(config_, *key, *value, where);
  }

  static bool is_group(std::string_view name) {
    const std::string prefix = std::string(name) + ".";
    return std::ranges::any_of(config_keys(),
                               [&](const Key& key) { return key.name.starts_with(prefix); });
  }

  static std::string not_a_group(const std::string& name) {
    if (name == "run") return "[run.*] holds keys only; [[run]] belongs in a file for `compare`";
    if (const Key* key = find_key(name)) {
      return fmt::format("{} must be {}, not a table", name, allowed_text(*key));
    }
    return unknown_key_message(name);
  }

  Config& config_;
  std::string_view source_;
  std::map<std::string, toml::source_region> set_;  ///< where each key was given
};

std::string read_file(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw ConfigError(fmt::format("configuration file {}: is a directory", file.string()));
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw ConfigError(
        fmt::format("configuration file {}: {}", file.string(), std::strerror(errno)));
  }
  std::string text(kMostFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) throw ConfigError(fmt::format("configuration file {}: cannot read", file.string()));
  return text;
}

RawValue override_value(const Key& key, std::string_view text) {
  switch (key.kind) {
    case KeyKind::boolean:
      if (text == "true" || text == "on") return true;
      if (text == "false" || text == "off") return false;
      break;
    case KeyKind::integer:
      if (const auto whole = parse_integer(text)) return *whole;
      break;
    case KeyKind::number:
      if (const auto real = parse_number(text)) return *real;
      break;
    default:
      break;
  }
  return std::string(text);
}

bool valid_run_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 64 && name != "." && name != ".." &&
         std::ranges::all_of(name, allowed);
}

/// The `name` of a run or of the whole file.
std::string read_name(const toml::table& table, std::string_view source, std::string_view what) {
  const toml::node* node = table.get("name");
  if (node == nullptr) {
    throw ConfigError(fmt::format("{}{} needs a name", location(source, table.source()), what));
  }
  const auto* text = node->as_string();
  if (text == nullptr || !valid_run_name(text->get())) {
    throw ConfigError(fmt::format("{}name of {} must be 1 to 64 letters, digits, '.', '_' or '-'",
                                  location(source, node->source()), what));
  }
  return text->get();
}

const toml::array& run_tables(const toml::table& root, std::string_view source) {
  const toml::node* node = root.get("run");
  if (node == nullptr) {
    throw ConfigError(fmt::format("{}: no [[run]] table; a comparison needs at least one", source));
  }
  const auto* runs = node->as_array();
  const bool tables = runs != nullptr && !runs->empty() &&
                      std::ranges::all_of(*runs, [](const toml::node& n) { return n.is_table(); });
  if (!tables) {
    throw ConfigError(location(source, node->source()) +
                      "run must be [[run]] tables in a file for `compare`; write keys of run.* "
                      "quoted, as in \"run.dir\" = \"runs\"");
  }
  return *runs;
}

}  // namespace

Config parse_config(std::string_view text, std::string_view source, const Config& base) {
  const toml::table root = parse_toml(text, source);
  if (const toml::node* run = root.get("run"); run != nullptr && run->is_array()) {
    throw ConfigError(location(source, run->source()) +
                      "[[run]] tables make a comparison; use `paceline compare` with this file");
  }
  Config config = base;
  TableReader(config, source).read(root, "");
  return config;
}

Config load_config(const std::filesystem::path& file, const Config& base) {
  return parse_config(read_file(file), file.string(), base);
}

void apply_override(Config& config, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    throw ConfigError(fmt::format("override {} is not of the form key=value",
                                  toml_quoted(assignment.substr(0, 80))));
  }
  std::string_view name = assignment.substr(0, equals);
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  const Key* key = find_key(name);
  if (key == nullptr) throw ConfigError(unknown_key_message(name));
  set_value(config, *key, override_value(*key, assignment.substr(equals + 1)), "");
}

void apply_overrides(Config& config, std::span<const std::string> assignments) {
  for (const std::string& assignment : assignments) apply_override(config, assignment);
}

CompareFile parse_compare(std::string_view text, std::string_view source,
                          std::span<const std::string> overrides) {
  const toml::table root = parse_toml(text, source);
  const toml::array& runs = run_tables(root, source);
  CompareFile file;
  file.name = root.contains("name") ? read_name(root, source, "the comparison")
                                    : std::filesystem::path(source).stem().string();
  Config base;
  TableReader base_reader(base, source);
  constexpr std::array<std::string_view, 2> kOfFile{"name", "run"};
  base_reader.read(root, "", kOfFile);
  for (const toml::node& node : runs) {
    const toml::table& table = *node.as_table();
    NamedConfig run{read_name(table, source, "a run"), base};
    if (std::ranges::find(file.runs, run.name, &NamedConfig::name) != file.runs.end()) {
      throw ConfigError(fmt::format("{}two runs are named '{}'; names must differ",
                                    location(source, node.source()), run.name));
    }
    run.config.run.name = run.name;
    TableReader reader(run.config, source);
    constexpr std::array<std::string_view, 1> kOfRun{"name"};
    reader.read(table, "", kOfRun);
    apply_overrides(run.config, overrides);
    file.runs.push_back(std::move(run));
  }
  return file;
}

CompareFile load_compare(const std::filesystem::path& file,
                         std::span<const std::string> overrides) {
  return parse_compare(read_file(file), file.string(), overrides);
}

}  // namespace paceline
