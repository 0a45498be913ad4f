// SPDX-License-Identifier: Apache-2.0
// How far a run is: one line that renews itself on a terminal, now and then a plain line elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace paceline {

enum class ProgressStyle : std::uint8_t { terminal, plain, quiet };

/// terminal when standard error is one (and TERM is not "dumb"), else plain.
[[nodiscard]] ProgressStyle default_progress_style();

/// Columns of the terminal on standard error; 80 when it does not tell.
[[nodiscard]] int terminal_width();

/// "ps  12%  7200/60000  1830/s  ETA 0:29  loss 0.71", cut to at most `width` bytes (ASCII).
/// ETA and rate are left out before anything is done.
[[nodiscard]] std::string progress_text(std::string_view label, std::int64_t done,
                                        std::int64_t total, double elapsed_s,
                                        std::string_view extra, int width);

struct ProgressOptions {
  ProgressStyle style = default_progress_style();
  double plain_every_s = 10.0;                  ///< plain style: least time between two lines
  std::ostream* out = nullptr;                  ///< null: std::cerr
  std::function<std::int64_t()> clock;          ///< ns; empty: now_ns()
  std::function<int()> width = terminal_width;  ///< asked anew for each line
};

/// Thread-compatible: one thread at a time. Outlived by the stream.
class Progress {
 public:
  /// `total` units of work in all, at least 1.
  Progress(std::string label, std::int64_t total, ProgressOptions options = {});
  /// Erases an unfinished line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Cheap when called often: draws at most ten times a second (terminal).
  void update(std::int64_t done, std::string_view extra = {});
  /// Prints a line that stays, above the progress line (not when quiet).
  void message(std::string_view line);
  /// Ends the progress line with `line` in its place (nothing when empty).
  void finish(std::string_view line = {});

 private:
  [[nodiscard]] std::int64_t now() const;
  void erase();

  std::string label_;
  std::int64_t total_;
  ProgressOptions options_;
  std::ostream& out_;
  std::int64_t start_ns_;
  std::int64_t drawn_ns_;
  bool line_open_ = false;
};

}  // namespace paceline
