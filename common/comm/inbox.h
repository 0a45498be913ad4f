// SPDX-License-Identifier: Apache-2.0
// Where a rank receives from peers that share its memory: one channel per peer and a doorbell. The
// same layout serves threads of one process (which share the object) and processes (which map it).
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/comm/emulated_nic.h"
#include "common/comm/file_descriptor.h"
#include "common/comm/segment.h"

namespace paceline {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kInlineBytes = kNicPieceBytes;  ///< payload that fits into a slot
inline constexpr std::uint64_t kChannelSlots = 16;

enum class FrameKind : std::uint32_t {
  inline_bytes,  ///< the payload follows in the slot
  pointer,       ///< `address` is a pointer valid in this process
  segment,       ///< `address` is an offset into the sender's segment `segment`, descriptor `fd`
  retire,        ///< no payload: the sender freed its segment `segment`
};

/// One frame: a whole message or a part of one. Written by the sender, then published by `turn`.
struct alignas(kCacheLine) Frame {
  std::atomic<std::uint64_t> turn;  ///< frame number + 1 once the frame may be read
  std::uint64_t total;              ///< bytes of the whole message
  std::uint64_t length;             ///< bytes of this frame
  std::uint64_t address;
  std::int64_t arrive_ns;  ///< emulated arrival; 0: at once
  std::uint32_t segment;
  std::int32_t fd;
  FrameKind kind;
};
static_assert(sizeof(Frame) == kCacheLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct Slot {
  Frame frame;
  std::array<std::byte, kInlineBytes> payload;
};

/// Frames from one rank to another. Frame k lives in slot k mod kChannelSlots.
struct Channel {
  alignas(kCacheLine) std::atomic<std::uint64_t> consumed;  ///< frames the reader is done with
  std::atomic<std::uint32_t> reader_left;
  std::atomic<std::uint32_t> reading;  ///< the reader is in memory that a frame points to
  alignas(kCacheLine) std::atomic<std::uint32_t> writer_left;
  alignas(kCacheLine) std::array<Slot, kChannelSlots> slots;
};

/// The shared memory of a rank: this header, then a Channel per rank of the job.
struct alignas(kCacheLine) InboxHeader {
  std::atomic<std::uint32_t> sleeping;  ///< the owner waits for its doorbell
};

/// A rank's inbox as its owner (first constructor) or a peer process (second) sees it. Atomics in
/// it may be used by any thread; the rest belongs to the link that uses the channel.
class Inbox {
 public:
  /// A new inbox for a job of `ranks`.
  explicit Inbox(int ranks);
  /// The inbox of process `pid`, which announced these descriptor numbers.
  Inbox(int ranks, pid_t pid, int memory_fd, int bell_fd);

  [[nodiscard]] Channel& channel(int source) noexcept;
  [[nodiscard]] int memory_descriptor() const noexcept { return memory_.descriptor(); }
  /// The doorbell's writing end, to be announced to other processes.
  [[nodiscard]] int bell_descriptor() const noexcept { return bell_write_.get(); }
  void close_memory_descriptor() noexcept { memory_.close_descriptor(); }

  /// Wakes the owner if it sleeps. Call after a store that it waits for (both seq_cst).
  void ring() noexcept;

  /// Owner only: announces that it is going to sleep. Anything stored before by a peer is visible
  /// to a check made after this call, anything later rings.
  void begin_sleep() noexcept;
  void end_sleep() noexcept;
  /// Owner only: readable when somebody rang.
  [[nodiscard]] int wake_descriptor() const noexcept { return bell_read_.get(); }

 private:
  [[nodiscard]] InboxHeader& header() noexcept;

  Segment memory_;
  FileDescriptor bell_read_;
  FileDescriptor bell_write_;
};

}  // namespace paceline
