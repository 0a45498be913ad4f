// SPDX-License-Identifier: Apache-2.0
// Memory that other processes of this machine can map: a memfd, handed over as (pid, descriptor
// number), so that nothing ever appears in a file system and nothing can be left behind.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "common/comm/file_descriptor.h"

namespace paceline {

/// Owns one mapping of a memfd.
class Segment {
 public:
  Segment() noexcept = default;
  /// A new segment: zeroed, page-aligned; huge pages are asked for from 2 MiB up. `touch` backs
  /// every page now. Throws Error naming the size when the system has no memory.
  Segment(std::size_t bytes, bool touch);
  /// Maps the segment that process `pid` of this machine holds as descriptor `fd`. `bytes` must not
  /// exceed the segment's size; 0 means all of it. Throws PeerLost where the process has ended,
  /// else Error naming pid and descriptor.
  static Segment open(pid_t pid, int fd, std::size_t bytes);
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  /// The descriptor to announce; -1 once close_descriptor() was called or when opened by pid.
  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  /// Ends the hand-over: existing mappings stay valid, new ones become impossible.
  void close_descriptor() noexcept { fd_.reset(); }

 private:
  Segment(FileDescriptor fd, std::size_t bytes);

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace paceline
