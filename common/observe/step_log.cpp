// SPDX-License-Identifier: Apache-2.0
#include "common/observe/step_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

#include "common/base/error.h"

namespace paceline {
namespace {

constexpr std::string_view kJsonStart = "{\"step\":";

std::string_view extension(StepFormat format) {
  return format == StepFormat::csv ? "csv" : "jsonl";
}

std::filesystem::path part_path(const std::filesystem::path& folder, int rank, StepFormat format) {
  return folder / fmt::format("steps.{}.{}", rank, extension(format));
}

/// Names and values of a line, in order: visit(name, integer or double).
template <typename Visit>
void describe(int rank, const StepMetrics& m, Visit&& visit) {
  visit("step", m.step);
  visit("rank", rank);
  visit("samples", m.samples);
  visit("loss", m.loss);
  visit("lr", m.lr);
  visit("compute_s", m.compute_s);
  visit("exposed_comm_s", m.exposed_comm_s);
  visit("wait_s", m.wait_s);
  visit("waited_for", m.waited_for);
  visit("waited_for_s", m.waited_for_s);
  visit("communication_s", m.communication_s);
  visit("bytes_sent", m.bytes_sent);
  visit("updates", m.staleness.updates);
  const auto updates = static_cast<double>(m.staleness.updates);
  visit("staleness_mean", m.staleness.updates > 0 ? m.staleness.sum / updates : 0.0);
  visit("staleness_max", m.staleness.max);
  visit("skipped", m.skipped);
}

/// `other`: in place of a number that is not finite.
void append_number(std::string& out, double value, std::string_view other) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(out), "{:.9g}", value);
  } else {
    out += other;
  }
}
template <std::integral T>
void append_number(std::string& out, T value, std::string_view /*other*/) {
  fmt::format_to(std::back_inserter(out), "{}", value);
}

void append_json(std::string& out, int rank, const StepMetrics& metrics) {
  char before = '{';
  describe(rank, metrics, [&](std::string_view name, auto value) {
    out += before;
    out += '"';
    out += name;
    out += "\":";
    append_number(out, value, "null");
    before = ',';
  });
  out += '}';
}

void append_csv(std::string& out, int rank, const StepMetrics& metrics) {
  bool first = true;
  describe(rank, metrics, [&](std::string_view /*name*/, auto value) {
    if (!first) out += ',';
    append_number(out, value, "");
    first = false;
  });
  out += '\r';
}

/// The next complete line of one rank's file and its step.
class PartReader {
 public:
  PartReader(const std::filesystem::path& path, StepFormat format)
      : in_(path, std::ios::binary), start_(format == StepFormat::csv ? "" : kJsonStart) {
    advance();
  }

  [[nodiscard]] bool at_end() const noexcept { return end_; }
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  [[nodiscard]] const std::string& line() const noexcept { return line_; }

  void advance() {
    end_ = !in_.is_open() || !std::getline(in_, line_) || in_.eof();
    if (end_ || !line_.starts_with(start_)) return;
    std::from_chars(line_.data() + start_.size(), line_.data() + line_.size(), step_);
  }

 private:
  std::ifstream in_;
  std::string_view start_;
  std::string line_;
  std::int64_t step_ = 0;
  bool end_ = false;
};

}  // namespace

std::string step_line(int rank, const StepMetrics& metrics) {
  std::string line;
  append_json(line, rank, metrics);
  return line;
}

std::string step_csv_header() {
  std::string header;
  describe(0, {}, [&](std::string_view name, auto /*value*/) {
    header += header.empty() ? "" : ",";
    header += name;
  });
  return header;
}

StepLog::StepLog(const std::filesystem::path& folder, int rank, StepFormat format)
    : rank_(rank), format_(format), file_(part_path(folder, rank, format)) {}

void StepLog::write(const StepMetrics& metrics) {
  std::string& out = file_.buffer();
  if (format_ == StepFormat::csv) {
    append_csv(out, rank_, metrics);
  } else {
    append_json(out, rank_, metrics);
  }
  out += '\n';
  file_.written();
}

void merge_step_logs(const std::filesystem::path& folder, int world, StepFormat format) {
  std::vector<std::unique_ptr<PartReader>> parts;
  parts.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    parts.push_back(std::make_unique<PartReader>(part_path(folder, rank, format), format));
  }
  const std::filesystem::path target = folder / fmt::format("steps.{}", extension(format));
  const std::filesystem::path temporary = target.string() + ".tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  if (format == StepFormat::csv) out << step_csv_header() << "\r\n";
  for (;;) {
    PartReader* next = nullptr;
    for (const auto& part : parts) {
      if (!part->at_end() && (next == nullptr || part->step() < next->step())) next = part.get();
    }
    if (next == nullptr) break;
    out << next->line() << '\n';
    next->advance();
  }
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, target, error);
  if (!out || error) {
    throw Error(fmt::format("cannot write {}: {}", target.string(),
                            error ? error.message() : std::strerror(errno)));
  }
  for (int rank = 0; rank < world; ++rank) {
    std::filesystem::remove(part_path(folder, rank, format), error);
  }
}

}  // namespace paceline
