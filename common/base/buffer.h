// SPDX-License-Identifier: Apache-2.0
// Large, long-lived memory: allocated once, aligned, advised huge, touched at start, reused.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace paceline {

/// Owns zeroed, 4 KiB-aligned anonymous memory (2 MiB pages are asked for from 2 MiB up). Every
/// page is touched before the constructor returns, so no later access pays for a page fault.
class Buffer {
 public:
  Buffer() noexcept = default;
  /// Throws Error naming the bytes wanted when the system has no memory.
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// Holds at least `bytes` afterwards. Where it grows, what it held is lost, and freed first, so
  /// that there is never room for both. Throws as the constructor does, and is empty then.
  void grow(std::size_t bytes) {
    if (bytes > bytes_) {
      *this = Buffer();
      *this = Buffer(bytes);
    }
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

  /// The memory as elements of T (trailing bytes that do not fill one are left out).
  template <typename T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace paceline
