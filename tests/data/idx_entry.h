// SPDX-License-Identifier: Apache-2.0
// What the fuzzer and the plain test both run: any bytes into parse_idx.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <span>

#include "common/base/error.h"
#include "common/data/dataset.h"

namespace paceline::test {

/// Bytes either parse into as many values as their extents say, or are refused with ConfigError.
/// Anything else ends the process or escapes as another exception. True if they parsed.
inline bool run_parse_idx(std::span<const std::uint8_t> bytes) {
  try {
    const IdxData data = parse_idx(bytes, "input");
    std::size_t expected = 1;
    for (const std::uint32_t extent : data.dims) {
      expected *= extent;
    }
    if (data.dims.empty() || data.values.size() != expected ||
        data.values.size() + 4 + 4 * data.dims.size() != bytes.size()) {
      std::abort();
    }
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace paceline::test
