// SPDX-License-Identifier: Apache-2.0
#include "common/observe/ml_log.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

namespace paceline {

namespace {

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

void MlLog::point(std::string_view key, std::string_view text, const MlLogMetadata& metadata,
                  Place place) {
  line("POINT_IN_TIME", key, quoted(text), metadata, place);
}

void MlLog::point(std::string_view key, double value, const MlLogMetadata& metadata, Place place) {
  line("POINT_IN_TIME", key, number(value), metadata, place);
}

void MlLog::point(std::string_view key, std::int64_t value, const MlLogMetadata& metadata,
                  Place place) {
  line("POINT_IN_TIME", key, fmt::format("{}", value), metadata, place);
}

void MlLog::throughput(double samples_per_second, const MlLogMetadata& metadata, Place place) {
  line("POINT_IN_TIME", "tracked_stats",
       fmt::format(R"({{"throughput": {}}})", number(samples_per_second)), metadata, place);
}

void MlLog::start(std::string_view key, const MlLogMetadata& metadata, Place place) {
  line("INTERVAL_START", key, "null", metadata, place);
}

void MlLog::stop(std::string_view key, const MlLogMetadata& metadata, Place place) {
  line("INTERVAL_END", key, "null", metadata, place);
}

void MlLog::line(std::string_view type, std::string_view key, std::string_view value,
                 const MlLogMetadata& metadata, const Place& place) {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string& out = file_.buffer();
  fmt::format_to(std::back_inserter(out),
                 R"(:::MLLOG {{"namespace": "", "time_ms": {}, "event_type": "{}", "key": "{}", )"
                 R"("value": {}, "metadata": {{"file": {}, "lineno": {})",
                 std::chrono::duration_cast<milliseconds>(now).count(), type, key, value,
                 quoted(file_name(place.file)), place.line);
  const auto add = [&out](const char* name, const std::optional<std::int64_t>& number) {
    if (number) fmt::format_to(std::back_inserter(out), R"(, "{}": {})", name, *number);
  };
  add("epoch_num", metadata.epoch);
  add("samples_count", metadata.samples);
  add("step", metadata.step);
  if (!metadata.status.empty()) {
    fmt::format_to(std::back_inserter(out), R"(, "status": {})", quoted(metadata.status));
  }
  out += "}}\n";
  file_.written();
}

}  // namespace paceline
