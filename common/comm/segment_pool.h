// SPDX-License-Identifier: Apache-2.0
// The segments that a rank's CommBuffers live in, by address: a message that lies in one goes to a
// peer of the node as a descriptor instead of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace paceline {

/// Used by the transport's thread only.
class SegmentPool {
 public:
  struct Place {
    std::uint32_t segment = 0;  ///< counts from 1, never reused
    std::int32_t fd = -1;       ///< of this process
    std::uint64_t offset = 0;
  };

  std::uint32_t add(std::span<const std::byte> memory, int fd) {
    entries_.push_back({memory.data(), memory.size(), ++last_segment_, fd});
    return last_segment_;
  }

  void remove(std::uint32_t segment) {
    std::erase_if(entries_, [segment](const Entry& entry) { return entry.segment == segment; });
    retired_.push_back(segment);
  }

  /// The place of [data, data + bytes) if all of it lies in one segment.
  [[nodiscard]] std::optional<Place> find(const std::byte* data, std::size_t bytes) const noexcept {
    for (const Entry& entry : entries_) {
      if (data >= entry.begin && data + bytes <= entry.begin + entry.bytes) {
        return Place{entry.segment, entry.fd, static_cast<std::uint64_t>(data - entry.begin)};
      }
    }
    return std::nullopt;
  }

  /// Every segment removed so far, in order.
  [[nodiscard]] const std::vector<std::uint32_t>& retired() const noexcept { return retired_; }

 private:
  struct Entry {
    const std::byte* begin;
    std::size_t bytes;
    std::uint32_t segment;
    int fd;
  };

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> retired_;
  std::uint32_t last_segment_ = 0;
};

}  // namespace paceline
