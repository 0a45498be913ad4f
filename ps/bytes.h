// SPDX-License-Identifier: Apache-2.0
// Little-endian numbers into and out of byte ranges, with every length checked.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ps/wire.h"

namespace paceline {

template <std::unsigned_integral T>
void store_le(std::byte* out, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out[i] = static_cast<std::byte>((value >> (8 * i)) & 0xFFU);
  }
}

template <std::unsigned_integral T>
[[nodiscard]] T load_le(const std::byte* in) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(in[i]) << (8 * i)));
  }
  return value;
}

/// Appends to a byte vector.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}
  template <std::unsigned_integral T>
  void put(T value) {
    out_.resize(out_.size() + sizeof(T));
    store_le(out_.data() + out_.size() - sizeof(T), value);
  }
  void put(float value) { put(std::bit_cast<std::uint32_t>(value)); }
  void put(double value) { put(std::bit_cast<std::uint64_t>(value)); }
  void put_bytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }

 private:
  std::vector<std::byte>& out_;
};

/// Reads from the front of a byte range; throws WireError when it is too short.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}
  template <std::unsigned_integral T>
  [[nodiscard]] T get() {
    return load_le<T>(take(sizeof(T)).data());
  }
  [[nodiscard]] float get_float() { return std::bit_cast<float>(get<std::uint32_t>()); }
  [[nodiscard]] double get_double() { return std::bit_cast<double>(get<std::uint64_t>()); }
  [[nodiscard]] std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > in_.size()) {
      throw WireError("payload ends early");
    }
    const auto result = in_.first(bytes);
    in_ = in_.subspan(bytes);
    return result;
  }
  [[nodiscard]] std::size_t left() const noexcept { return in_.size(); }

 private:
  std::span<const std::byte> in_;
};

}  // namespace paceline
