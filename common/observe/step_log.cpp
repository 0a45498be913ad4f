// SPDX-License-Identifier: Apache-2.0
#include "common/observe/step_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

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

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::string_view kLineStart = "{\"step\":";

std::filesystem::path part_path(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("steps.{}.jsonl", rank);
}

void append_number(std::string& out, std::string_view name, double value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(out), ",\"{}\":{:.9g}", name, value);
  } else {
    fmt::format_to(std::back_inserter(out), ",\"{}\":null", name);
  }
}

void append_line(std::string& out, int rank, const StepMetrics& m) {
  fmt::format_to(std::back_inserter(out), "{}{},\"rank\":{},\"samples\":{}", kLineStart, m.step,
                 rank, m.samples);
  append_number(out, "loss", m.loss);
  append_number(out, "lr", m.lr);
  append_number(out, "compute_s", m.compute_s);
  append_number(out, "exposed_comm_s", m.exposed_comm_s);
  append_number(out, "wait_s", m.wait_s);
  append_number(out, "communication_s", m.communication_s);
  fmt::format_to(std::back_inserter(out), ",\"bytes_sent\":{},\"updates\":{}", m.bytes_sent,
                 m.staleness.updates);
  const double updates = static_cast<double>(m.staleness.updates);
  append_number(out, "staleness_mean", m.staleness.updates > 0 ? m.staleness.sum / updates : 0.0);
  fmt::format_to(std::back_inserter(out), ",\"staleness_max\":{}}}", m.staleness.max);
}

/// The next complete line of one rank's file and its step.
class PartReader {
 public:
  explicit PartReader(const std::filesystem::path& path) : in_(path, std::ios::binary) {
    advance();
  }

  [[nodiscard]] bool at_end() const noexcept { return end_; }
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  [[nodiscard]] const std::string& line() const noexcept { return line_; }

  void advance() {
    end_ = !in_.is_open() || !std::getline(in_, line_) || in_.eof();
    if (end_ || !line_.starts_with(kLineStart)) return;
    const char* const digits = line_.data() + kLineStart.size();
    std::from_chars(digits, line_.data() + line_.size(), step_);
  }

 private:
  std::ifstream in_;
  std::string line_;
  std::int64_t step_ = 0;
  bool end_ = false;
};

}  // namespace

std::string step_line(int rank, const StepMetrics& metrics) {
  std::string line;
  append_line(line, rank, metrics);
  return line;
}

StepLog::StepLog(const std::filesystem::path& folder, int rank)
    : path_(part_path(folder, rank)),
      rank_(rank),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (fd_ < 0) {
    throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  }
  buffer_.reserve(kBufferBytes + 1024);
}

StepLog::~StepLog() {
  try {
    flush();
  } catch (const Error&) {
    buffer_.clear();
  }
  ::close(fd_);
}

void StepLog::write(const StepMetrics& metrics) {
  append_line(buffer_, rank_, metrics);
  buffer_ += '\n';
  if (buffer_.size() >= kBufferBytes) flush();
}

void StepLog::flush() {
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t written = ::write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      buffer_.erase(0, buffer_.size() - left.size());
      throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(error)));
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

void merge_step_logs(const std::filesystem::path& folder, int world) {
  std::vector<std::unique_ptr<PartReader>> parts;
  parts.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    parts.push_back(std::make_unique<PartReader>(part_path(folder, rank)));
  }
  const std::filesystem::path target = folder / "steps.jsonl";
  const std::filesystem::path temporary = folder / "steps.jsonl.tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
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
    std::filesystem::remove(part_path(folder, rank), error);
  }
}

}  // namespace paceline
