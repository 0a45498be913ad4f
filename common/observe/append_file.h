// SPDX-License-Identifier: Apache-2.0
// A file that grows while a run goes on, written in pieces of 64 KiB so that a step never waits for
// the disk.
#pragma once

#include <filesystem>
#include <string>

namespace paceline {

/// Used by one thread.
class AppendFile {
 public:
  /// Makes or empties the file. Throws Error naming it when it cannot be made.
  explicit AppendFile(std::filesystem::path path);
  /// Flushes; an error then is lost: call flush() before.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Append to it, then call written().
  [[nodiscard]] std::string& buffer() noexcept { return buffer_; }
  /// Hands a full buffer to the system. Throws Error naming the file when the disk is full.
  void written();
  void flush();

 private:
  std::filesystem::path path_;
  int fd_;
  std::string buffer_;
};

}  // namespace paceline
