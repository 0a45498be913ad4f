// SPDX-License-Identifier: Apache-2.0
// Named arrays as one run of bytes, to carry a server's state through a message.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/sync/state_io.h"

namespace paceline {

/// Collects what is put; bytes() is the message.
class StateBlobWriter final : public StateWriter {
 public:
  void put(std::string_view name, std::span<const float> values) override;
  void put(std::string_view name, std::int64_t value) override;
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what StateBlobWriter wrote. Copies nothing: the bytes outlive it.
class StateBlobReader final : public StateReader {
 public:
  struct Array {
    std::span<const std::byte> bytes;
    bool is_integer = false;
  };
  /// Throws WireError when the bytes are not well formed.
  explicit StateBlobReader(std::span<const std::byte> bytes);

  void get(std::string_view name, std::span<float> values) override;
  [[nodiscard]] std::int64_t get(std::string_view name) override;
  /// A copy of an entry's values.
  [[nodiscard]] std::vector<float> floats(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, Array, std::less<>>& entries() const noexcept {
    return entries_;
  }

 private:
  [[nodiscard]] const Array& find(std::string_view name, bool is_integer) const;
  std::map<std::string, Array, std::less<>> entries_;
};

}  // namespace paceline
