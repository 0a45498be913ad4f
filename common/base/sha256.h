// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): names weights and configurations by their content.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace paceline {

/// Hashes bytes given in any number of parts.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes) noexcept;
  void update(std::string_view text) noexcept { update(std::as_bytes(std::span(text))); }
  /// The digest as 64 lower-case hexadecimal digits. Ends the hash: nothing may follow.
  [[nodiscard]] std::string hex() noexcept;

 private:
  static constexpr std::size_t kBlock = 64;
  void compress(const std::byte* block) noexcept;

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

[[nodiscard]] std::string sha256_hex(std::span<const std::byte> bytes);
[[nodiscard]] std::string sha256_hex(std::string_view text);

}  // namespace paceline
