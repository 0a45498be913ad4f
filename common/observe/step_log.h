// SPDX-License-Identifier: Apache-2.0
// steps.jsonl and steps.csv: one line per step and rank. Every rank writes its own file; at the end
// they are merged. docs/summary-schema.md describes the fields.
#pragma once

#include <filesystem>
#include <string>

#include "common/core/trainer.h"
#include "common/observe/append_file.h"

namespace paceline {

/// jsonl: a JSON object per line. csv: RFC 4180 with a header line.
enum class StepFormat : std::uint8_t { jsonl, csv };

/// A JSON line without its newline; a number that is not finite is written as null.
[[nodiscard]] std::string step_line(int rank, const StepMetrics& metrics);

/// The names of the fields with commas between them, without the line's end.
[[nodiscard]] std::string step_csv_header();

/// Writes steps.<rank>.jsonl or .csv (there a number that is not finite is an empty field) into an
/// existing folder; a step costs well under 10 µs. Used by one thread.
class StepLog {
 public:
  /// Throws Error naming the file when it cannot be made.
  StepLog(const std::filesystem::path& folder, int rank, StepFormat format = StepFormat::jsonl);

  /// Throws Error naming the file when the disk is full.
  void write(const StepMetrics& metrics);
  void flush() { file_.flush(); }

 private:
  int rank_;
  StepFormat format_;
  AppendFile file_;
};

/// Merges steps.<rank>.jsonl (.csv) of ranks 0..world-1 into steps.jsonl (.csv), by step, then
/// rank, and removes them. A missing file counts as empty; a last line without newline (its rank
/// was killed) is left out. Throws Error naming the file that cannot be read or written.
void merge_step_logs(const std::filesystem::path& folder, int world,
                     StepFormat format = StepFormat::jsonl);

}  // namespace paceline
