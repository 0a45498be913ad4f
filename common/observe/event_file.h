// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files, without Python or protobuf.
//
// The file is a sequence of TFRecords: length (8 bytes), masked CRC32C of those 8 bytes (4), the
// record, masked CRC32C of the record (4); numbers are little-endian. A record is a protobuf
// message Event { 1: double wall_time; 2: int64 step; 3: string file_version; 5: Summary summary },
// Summary { 1: repeated Value value }, Value { 1: string tag; 2: float simple_value }. The first
// event carries the file_version "brain.Event:2" and nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "common/observe/append_file.h"

namespace paceline {

/// CRC-32C (Castagnoli, as RFC 3720 has it): of "123456789" 0xE3069283.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes) noexcept;
/// TFRecord's mask: rotated right by 15, plus 0xa282ead8, so that a CRC of data that holds CRCs is
/// no special case.
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

struct Scalar {
  std::string_view tag;
  float value = 0.0F;
};

/// Writes events.out.tfevents.<seconds>.<host> into `folder`, which it makes. Used by one thread.
class EventFile {
 public:
  /// Throws Error naming what cannot be made.
  explicit EventFile(const std::filesystem::path& folder);

  /// One event: `scalars` at `step`, now. Throws Error naming the file when the disk is full.
  void add(std::int64_t step, std::span<const Scalar> scalars);
  void flush() { file_.flush(); }

 private:
  void append_record();

  AppendFile file_;
  std::string event_;    // reused from event to event
  std::string summary_;  // likewise
};

}  // namespace paceline
