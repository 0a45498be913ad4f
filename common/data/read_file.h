// SPDX-License-Identifier: Apache-2.0
// Files of data sets, whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

/// The file's bytes, decompressed if it is gzipped. Throws ConfigError naming the file when it
/// cannot be read, is truncated, or holds over 1 GiB (which stops a decompression bomb).
[[nodiscard]] std::vector<std::uint8_t> read_data_file(const std::string& path);

}  // namespace paceline
