// SPDX-License-Identifier: Apache-2.0
// Small files written whole: a reader sees the old content or all of the new one.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace paceline {

/// Writes `path`.tmp, flushes it to the disk and renames it. Throws Error naming the path and the
/// system's reason; then `path` is untouched and no .tmp is left.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// The file's bytes. Throws Error naming the path when it is missing, no regular file, or larger
/// than `most_bytes`.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace paceline
