// SPDX-License-Identifier: Apache-2.0
// trace.json: what each rank did when, for chrome://tracing and ui.perfetto.dev. One process per
// rank, with lanes compute, communication and wait.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/core/trainer.h"

namespace paceline {

/// Spans of one rank, in bounded memory: 24 bytes a span, the first `most_spans` are kept, later
/// ones are counted. Used by one thread.
class Trace {
 public:
  explicit Trace(int rank, std::size_t most_spans = 200'000);

  /// Times are now_ns(). `name` is copied. A span that ends before it begins is taken as empty.
  void add(Lane lane, std::string_view name, std::int64_t begin_ns, std::int64_t end_ns);

  [[nodiscard]] std::size_t spans() const noexcept { return spans_.size(); }
  [[nodiscard]] std::int64_t dropped() const noexcept { return dropped_; }

  /// Writes trace.<rank>.jsonl, one trace event per line. Throws Error naming the file.
  void write(const std::filesystem::path& folder) const;

 private:
  struct Span {
    std::int64_t begin_ns;
    std::int64_t duration_ns;
    std::uint32_t name;
    Lane lane;
  };

  [[nodiscard]] std::uint32_t intern(std::string_view name);
  void append_metadata(std::string& out) const;
  void append_lane(std::string& out, Lane lane) const;

  int rank_;
  std::size_t most_spans_;
  std::vector<Span> spans_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t> name_index_;
  std::int64_t dropped_ = 0;
};

/// Joins trace.<rank>.jsonl of ranks 0..world-1 (missing ones left out) to trace.json and removes
/// them. Throws Error naming the file.
void merge_traces(const std::filesystem::path& folder, int world);

}  // namespace paceline
