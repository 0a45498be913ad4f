// SPDX-License-Identifier: Apache-2.0
// mllog.txt: MLPerf's logging lines, ":::MLLOG {json}", with keys as mlcommons/logging names them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "common/observe/append_file.h"

namespace paceline {

/// What an MLPerf line says about its place in the run.
struct MlLogMetadata {
  std::optional<std::int64_t> epoch = {};    ///< epoch_num, counted from 1
  std::optional<std::int64_t> samples = {};  ///< samples_count, trained on by then
  std::optional<std::int64_t> step = {};
  std::string_view status = {};  ///< of run_stop
};

/// Used by one thread.
class MlLog {
 public:
  /// The caller's file and line (std::source_location is not in clang 14).
  struct Place {
    const char* file;
    int line;
    static constexpr Place current(const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) noexcept {
      return {file, line};
    }
  };

  /// Makes mllog.txt in `folder`. Throws Error naming it.
  explicit MlLog(const std::filesystem::path& folder) : file_(folder / "mllog.txt") {}

  void point(std::string_view key, std::string_view text, const MlLogMetadata& metadata = {},
             Place place = Place::current());
  void point(std::string_view key, const char* text, const MlLogMetadata& metadata = {},
             Place place = Place::current()) {
    point(key, std::string_view(text), metadata, place);
  }
  void point(std::string_view key, double value, const MlLogMetadata& metadata = {},
             Place place = Place::current());
  void point(std::string_view key, std::int64_t value, const MlLogMetadata& metadata = {},
             Place place = Place::current());
  /// tracked_stats, which submissions use beside the specified keys.
  void throughput(double samples_per_second, const MlLogMetadata& metadata,
                  Place place = Place::current());
  /// Every interval that starts must stop before the same key starts again.
  void start(std::string_view key, const MlLogMetadata& metadata = {},
             Place place = Place::current());
  void stop(std::string_view key, const MlLogMetadata& metadata = {},
            Place place = Place::current());
  void flush() { file_.flush(); }

 private:
  /// `value` is JSON.
  void line(std::string_view type, std::string_view key, std::string_view value,
            const MlLogMetadata& metadata, const Place& place);

  AppendFile file_;
};

}  // namespace paceline
