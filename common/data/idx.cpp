// SPDX-License-Identifier: Apache-2.0
// LeCun's idx format: two zero bytes, type (8: unsigned byte), number of dimensions, each extent as
// a big-endian 32-bit integer, then the values.
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/data/dataset.h"

namespace paceline {

namespace {
constexpr std::size_t kMagicBytes = 4;
constexpr std::size_t kExtentBytes = 4;
constexpr std::uint8_t kUnsignedByte = 0x08;
}  // namespace

IdxData parse_idx(std::span<const std::uint8_t> bytes, std::string_view what) {
  if (bytes.size() < kMagicBytes) {
    throw ConfigError(fmt::format("{}: truncated: {} bytes, an idx file has at least {}", what,
                                  bytes.size(), kMagicBytes));
  }
  if (bytes[0] != 0 || bytes[1] != 0 || bytes[2] != kUnsignedByte || bytes[3] == 0) {
    throw ConfigError(
        fmt::format("{}: wrong magic {:02x}{:02x}{:02x}{:02x}, expected 000008NN with NN >= 1 "
                    "dimensions of unsigned bytes",
                    what, bytes[0], bytes[1], bytes[2], bytes[3]));
  }
  const std::size_t header = kMagicBytes + kExtentBytes * bytes[3];
  if (bytes.size() < header) {
    throw ConfigError(fmt::format("{}: truncated: {} bytes, the header alone has {}", what,
                                  bytes.size(), header));
  }
  const std::size_t available = bytes.size() - header;
  IdxData data;
  std::size_t expected = 1;
  bool overflow = false;
  for (std::size_t at = kMagicBytes; at < header; at += kExtentBytes) {
    const std::uint32_t extent = (std::uint32_t{bytes[at]} << 24) |
                                 (std::uint32_t{bytes[at + 1]} << 16) |
                                 (std::uint32_t{bytes[at + 2]} << 8) | bytes[at + 3];
    data.dims.push_back(extent);
    overflow = __builtin_mul_overflow(expected, std::size_t{extent}, &expected) || overflow;
  }
  if (overflow || expected != available) {
    throw ConfigError(fmt::format("{}: {}: header says {} values ({}), found {}", what,
                                  overflow || expected > available ? "truncated" : "trailing bytes",
                                  overflow ? "over 2^64" : fmt::format("{}", expected),
                                  fmt::join(data.dims, "x"), available));
  }
  const auto values = bytes.subspan(header);
  data.values.assign(values.begin(), values.end());
  return data;
}

}  // namespace paceline
