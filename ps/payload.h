// SPDX-License-Identifier: Apache-2.0
// Bytes of a message together with whatever keeps them alive and unchanged.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace paceline {

/// Immutable while any copy lives. The owner may be released on any thread (ZeroMQ's included), so
/// its deleter must only touch atomics or free memory.
class Payload {
 public:
  Payload() = default;
  Payload(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  static Payload copy_of(std::span<const std::byte> bytes) {
    auto memory = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    const std::span<const std::byte> view(*memory);
    return {view, std::move(memory)};
  }
  static Payload copy_of(std::string_view text) {
    return copy_of(std::as_bytes(std::span(text.data(), text.size())));
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  /// The bytes as floats; they are aligned for float (the mailbox sees to it).
  [[nodiscard]] std::span<const float> floats() const noexcept {
    return {reinterpret_cast<const float*>(bytes_.data()), bytes_.size() / sizeof(float)};
  }
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace paceline
