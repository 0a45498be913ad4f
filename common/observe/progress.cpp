// SPDX-License-Identifier: Apache-2.0
#include "common/observe/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "common/base/time.h"

namespace paceline {
namespace {

constexpr double kTerminalEvery = 0.1;

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::lround(std::clamp(seconds, 0.0, 3.6e7)));
  const std::int64_t hours = whole / 3600;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

ProgressStyle default_progress_style() {
  const char* const term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::strcmp(term, "dumb") == 0;
  return isatty(STDERR_FILENO) != 0 && !dumb ? ProgressStyle::terminal : ProgressStyle::plain;
}

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string progress_text(std::string_view label, std::int64_t done, std::int64_t total,
                          double elapsed_s, std::string_view extra, int width) {
  const std::int64_t shown = std::clamp<std::int64_t>(done, 0, total);
  const double share = static_cast<double>(shown) / static_cast<double>(total);
  std::string text =
      fmt::format("{}  {:3}%  {}/{}", label, static_cast<int>(share * 100.0), shown, total);
  if (shown > 0 && elapsed_s > 0.0) {
    text += fmt::format("  {:.0f}/s", static_cast<double>(shown) / elapsed_s);
    text += shown < total ? "  ETA " + clock_text(elapsed_s * (1.0 - share) / share)
                          : "  took " + clock_text(elapsed_s);
  }
  if (!extra.empty()) text += fmt::format("  {}", extra);
  if (text.size() > static_cast<std::size_t>(std::max(width, 0))) {
    text.resize(static_cast<std::size_t>(std::max(width, 0)));
  }
  return text;
}

Progress::Progress(std::string label, std::int64_t total, ProgressOptions options)
    : label_(std::move(label)),
      total_(std::max<std::int64_t>(1, total)),
      options_(std::move(options)),
      out_(options_.out != nullptr ? *options_.out : std::cerr),
      start_ns_(now()),
      drawn_ns_(start_ns_) {}

Progress::~Progress() {
  if (line_open_) erase();
}

std::int64_t Progress::now() const {
  return options_.clock ? options_.clock() : now_ns();
}

void Progress::erase() {
  if (line_open_) out_ << "\r\x1b[K" << std::flush;
  line_open_ = false;
}

void Progress::update(std::int64_t done, std::string_view extra) {
  if (options_.style == ProgressStyle::quiet) return;
  const bool terminal = options_.style == ProgressStyle::terminal;
  const std::int64_t time = now();
  const double since = seconds(time - drawn_ns_);
  const bool first = terminal && !line_open_;
  if (!first && since < (terminal ? kTerminalEvery : options_.plain_every_s)) return;
  drawn_ns_ = time;
  const int width = terminal ? options_.width() - 1 : 1000;
  const std::string text =
      progress_text(label_, done, total_, seconds(time - start_ns_), extra, width);
  if (terminal) {
    out_ << '\r' << text << "\x1b[K" << std::flush;
    line_open_ = true;
  } else {
    out_ << text << '\n' << std::flush;
  }
}

void Progress::message(std::string_view line) {
  erase();
  if (options_.style != ProgressStyle::quiet) out_ << line << '\n' << std::flush;
}

void Progress::finish(std::string_view line) {
  erase();
  if (options_.style != ProgressStyle::quiet && !line.empty()) out_ << line << '\n' << std::flush;
}

}  // namespace paceline
