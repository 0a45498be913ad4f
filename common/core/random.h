// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: element i of a stream depends on (key, i) alone, so any part of a
// sequence can be made anywhere, in any order, on any device, with the same bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace paceline {

/// One step of splitmix64 (Steele, Lea, Flood 2014): a bijective mix of 64 bits.
[[nodiscard]] constexpr std::uint64_t splitmix64(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Key of a stream that is independent of those of other (seed, stream) pairs.
[[nodiscard]] constexpr std::uint64_t stream_key(std::uint64_t seed,
                                                 std::uint64_t stream) noexcept {
  return splitmix64(splitmix64(seed) ^ (stream * 0xD1342543DE82EF95ULL));
}

/// Likewise, with a name for the stream (FNV-1a).
[[nodiscard]] constexpr std::uint64_t stream_key(std::uint64_t seed,
                                                 std::string_view name) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return stream_key(seed, hash);
}

/// Element i of the stream: uniform in [0, 1), a multiple of 2^-24, so exact in fp32.
[[nodiscard]] constexpr float uniform01(std::uint64_t key, std::uint64_t i) noexcept {
  return static_cast<float>(splitmix64(key + i) >> 40) * 0x1.0p-24F;
}

}  // namespace paceline
