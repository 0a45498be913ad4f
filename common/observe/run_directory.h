// SPDX-License-Identifier: Apache-2.0
// runs/<time>-<name>/: everything that one run leaves behind. DONE is written last, so a folder
// with DONE is whole and one without is not to be used.
//
//   config.toml       the resolved configuration
//   environment.json  machine, program, libraries, variables
//   steps.jsonl       one line per step and rank (observe.steps), or steps.csv (observe.csv)
//   trace.json        what each rank did when (observe.trace; Perfetto)
//   tensorboard/      event files, a folder per rank (observe.tensorboard)
//   mllog.txt         MLPerf's lines (observe.mllog)
//   summary.json      what was measured
//   DONE              the run is complete
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "common/config/config.h"
#include "common/observe/environment.h"
#include "common/observe/summary.h"

namespace paceline {

/// Owned by the launcher; ranks get path() and write their own parts (Recorder). Deletes
/// nothing: an unfinished folder stays for whoever looks for the reason.
class RunDirectory {
 public:
  /// Makes config.run.dir/<UTC time>-<config.run.name, else config.sync>/, with -2, -3, ... behind
  /// where the name is taken, and writes config.toml and environment.json. Throws ConfigError
  /// naming run.dir and the path when it cannot be made.
  static RunDirectory create(const Config& config, const Environment& environment);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Merges what the ranks wrote, writes summary.json and, last, DONE. Throws Error naming the
  /// file; then there is no DONE.
  void finish(const Summary& summary) const;

 private:
  RunDirectory(std::filesystem::path path, const Config& config)
      : path_(std::move(path)), world_(config.world), observe_(config.observe) {}
  std::filesystem::path path_;
  int world_;
  ObserveConfig observe_;
};

/// The newest run in `dir` that has DONE, a readable summary, and a config.toml that asks for the
/// same as `config` (canonical_text(); run.* aside). Folders that cannot be read are passed over.
[[nodiscard]] std::optional<std::filesystem::path> find_finished(const std::filesystem::path& dir,
                                                                 const Config& config);

}  // namespace paceline
