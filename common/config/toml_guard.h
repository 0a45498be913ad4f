// SPDX-License-Identifier: Apache-2.0
// Keeps text that toml++ 3.3 (Debian 12) cannot take away from it: on some characters outside ASCII
// where white space may stand its parser reaches a point marked unreachable, which is undefined
// behaviour (tomlplusplus issues 190 and 295).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace paceline {

/// Offset of the first byte that is no valid UTF-8, or of the first character outside ASCII that is
/// neither in a comment nor in a string on one line (where TOML allows none but in multi-line
/// strings). Empty when the text is safe to parse.
[[nodiscard]] std::optional<std::size_t> find_unsafe_byte(std::string_view text) noexcept;

}  // namespace paceline
