// SPDX-License-Identifier: Apache-2.0
#include "common/observe/run_directory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>
#include <system_error>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "common/config/print.h"
#include "common/observe/files.h"
#include "common/observe/step_log.h"
#include "common/observe/trace.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}{:02}{:02}-{:02}{:02}{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

[[noreturn]] void refuse(const Config& config, const fs::path& path, const std::string& reason) {
  throw ConfigError(
      fmt::format("run.dir = \"{}\": cannot make {}: {}", config.run.dir, path.string(), reason));
}

/// The part of a name that may stand in a folder's name.
std::string safe_name(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == '\0') c = '_';
  }
  return name;
}

bool asks_for_the_same(const fs::path& run, const std::string& canonical) {
  try {
    if (canonical_text(load_config(run / "config.toml")) != canonical) return false;
    (void)load_summary(run / "summary.json");
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

RunDirectory RunDirectory::create(const Config& config, const Environment& environment) {
  const fs::path parent(config.run.dir);
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) refuse(config, parent, error.message());
  const std::string base = fmt::format(
      "{}-{}", utc_time(), safe_name(config.run.name.empty() ? config.sync : config.run.name));
  fs::path path = parent / base;
  constexpr int kMostAttempts = 10'000;
  for (int attempt = 2; !fs::create_directory(path, error); ++attempt) {
    if (error) refuse(config, path, error.message());
    if (attempt > kMostAttempts) refuse(config, path, "the name is taken");
    path = parent / fmt::format("{}-{}", base, attempt);
  }
  try {
    write_file_atomically(path / "config.toml", to_toml(config));
    write_file_atomically(path / "environment.json", environment_to_json(environment));
  } catch (const Error& failed) {
    throw ConfigError(fmt::format("run.dir = \"{}\": {}", config.run.dir, failed.what()));
  }
  return {path, config};
}

void RunDirectory::finish(const Summary& summary) const {
  if (observe_.steps) merge_step_logs(path_, world_);
  if (observe_.csv) merge_step_logs(path_, world_, StepFormat::csv);
  if (observe_.trace) merge_traces(path_, world_);
  write_file_atomically(path_ / "summary.json", summary_to_json(summary));
  write_file_atomically(path_ / "DONE", fmt::format("{}\n", utc_time()));
}

std::optional<fs::path> find_finished(const fs::path& dir, const Config& config) {
  const std::string canonical = canonical_text(config);
  std::optional<fs::path> newest;
  fs::file_time_type newest_time;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unfinished;
    const auto time = fs::last_write_time(entry->path() / "DONE", unfinished);
    if (unfinished || (newest && time <= newest_time)) continue;
    if (!asks_for_the_same(entry->path(), canonical)) continue;
    newest = entry->path();
    newest_time = time;
  }
  return newest;
}

}  // namespace paceline
