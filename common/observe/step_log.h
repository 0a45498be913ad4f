// SPDX-License-Identifier: Apache-2.0
// steps.jsonl: one JSON object per step and rank. Every rank writes its own file; at the end they
// are merged. docs/summary-schema.md describes the fields.
#pragma once

#include <filesystem>
#include <string>

#include "common/core/trainer.h"

namespace paceline {

/// One line without its newline; a number that is not finite is written as null.
[[nodiscard]] std::string step_line(int rank, const StepMetrics& metrics);

/// Writes steps.<rank>.jsonl into an existing folder. Buffers 64 KiB, so a step costs well under
/// 10 µs. Used by one thread.
class StepLog {
 public:
  /// Throws Error naming the file when it cannot be made.
  StepLog(const std::filesystem::path& folder, int rank);
  /// Flushes; an error then is lost: call flush() before.
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  /// Throws Error naming the file when the disk is full.
  void write(const StepMetrics& metrics);
  void flush();

 private:
  std::filesystem::path path_;
  int rank_;
  int fd_;
  std::string buffer_;
};

/// Merges steps.<rank>.jsonl of ranks 0..world-1 into steps.jsonl, by step, then rank, and removes
/// them. A missing file counts as empty; a last line without newline (its rank was killed) is left
/// out. Throws Error naming the file that cannot be read or written.
void merge_step_logs(const std::filesystem::path& folder, int world);

}  // namespace paceline
