// SPDX-License-Identifier: Apache-2.0
#include "common/observe/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/base/error.h"
#include "common/observe/files.h"

namespace paceline {
namespace {

constexpr std::size_t kMostNames = 4096;
constexpr std::ptrdiff_t kRowsPerLane = 16;  ///< spans that overlap get a row each
constexpr std::array<std::string_view, 3> kLaneNames{"compute", "communication", "wait"};

std::filesystem::path trace_part(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("trace.{}.jsonl", rank);
}

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Nanoseconds as trace microseconds.
std::string microseconds(std::int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

}  // namespace

Trace::Trace(int rank, std::size_t most_spans) : rank_(rank), most_spans_(most_spans) {}

std::uint32_t Trace::intern(std::string_view name) {
  std::string key(name);
  if (const auto found = name_index_.find(key); found != name_index_.end()) return found->second;
  if (names_.size() >= kMostNames) return kMostNames - 1;
  if (names_.size() == kMostNames - 1) key = "(other)";
  const auto index = static_cast<std::uint32_t>(names_.size());
  names_.push_back(key);
  name_index_.emplace(std::move(key), index);
  return index;
}

void Trace::add(Lane lane, std::string_view name, std::int64_t begin_ns, std::int64_t end_ns) {
  if (spans_.size() >= most_spans_) {
    ++dropped_;
    return;
  }
  spans_.push_back({begin_ns, std::max<std::int64_t>(0, end_ns - begin_ns), intern(name), lane});
}

void Trace::append_metadata(std::string& out) const {
  const auto line = [&](std::string_view name, int thread, std::string_view args) {
    fmt::format_to(std::back_inserter(out),
                   R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}})"
                   "\n",
                   rank_, thread, name, args);
  };
  const std::string label = dropped_ == 0
                                ? fmt::format("rank {}", rank_)
                                : fmt::format("rank {} ({} later spans left out)", rank_, dropped_);
  line("process_name", 0, fmt::format(R"("name":"{}")", label));
  line("process_sort_index", 0, fmt::format(R"("sort_index":{})", rank_));
}

void Trace::append_lane(std::string& out, Lane lane) const {
  std::vector<const Span*> ordered;
  for (const Span& span : spans_) {
    if (span.lane == lane) ordered.push_back(&span);
  }
  std::ranges::stable_sort(ordered, {}, [](const Span* span) { return span->begin_ns; });
  std::vector<std::int64_t> row_ends;
  for (const Span* span : ordered) {
    auto row =
        std::ranges::find_if(row_ends, [&](std::int64_t end) { return end <= span->begin_ns; });
    if (row == row_ends.end() && std::ssize(row_ends) < kRowsPerLane) {
      row = row_ends.insert(row_ends.end(), 0);
    }
    if (row == row_ends.end()) --row;
    *row = std::max(*row, span->begin_ns + span->duration_ns);
    const auto thread = static_cast<std::ptrdiff_t>(lane) * kRowsPerLane + (row - row_ends.begin());
    fmt::format_to(std::back_inserter(out),
                   R"({{"ph":"X","pid":{},"tid":{},"name":{},"cat":"{}","ts":{},"dur":{}}})"
                   "\n",
                   rank_, thread, json_string(names_[span->name]),
                   kLaneNames[static_cast<std::size_t>(lane)], microseconds(span->begin_ns),
                   microseconds(span->duration_ns));
  }
  for (std::size_t row = 0; row < row_ends.size(); ++row) {
    const auto thread =
        static_cast<std::ptrdiff_t>(lane) * kRowsPerLane + static_cast<std::ptrdiff_t>(row);
    const std::string_view name = kLaneNames[static_cast<std::size_t>(lane)];
    fmt::format_to(
        std::back_inserter(out),
        R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_name","args":{{"name":"{2}"}}}})"
        "\n"
        R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{1}}}}})"
        "\n",
        rank_, thread, name);
  }
}

void Trace::write(const std::filesystem::path& folder) const {
  std::string out;
  append_metadata(out);
  for (const Lane lane : {Lane::compute, Lane::communication, Lane::wait}) append_lane(out, lane);
  write_file_atomically(trace_part(folder, rank_), out);
}

void merge_traces(const std::filesystem::path& folder, int world) {
  const std::filesystem::path target = folder / "trace.json";
  const std::filesystem::path temporary = folder / "trace.json.tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << R"({"displayTimeUnit":"ms","traceEvents":[)";
  std::string_view separator = "\n";
  std::string line;
  for (int rank = 0; rank < world; ++rank) {
    std::ifstream in(trace_part(folder, rank), std::ios::binary);
    while (std::getline(in, line) && !in.eof()) {
      out << separator << line;
      separator = ",\n";
    }
  }
  out << "\n]}\n";
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, target, error);
  if (!out || error) {
    throw Error(fmt::format("cannot write {}: {}", target.string(),
                            error ? error.message() : std::strerror(errno)));
  }
  for (int rank = 0; rank < world; ++rank) {
    std::filesystem::remove(trace_part(folder, rank), error);
  }
}

}  // namespace paceline
