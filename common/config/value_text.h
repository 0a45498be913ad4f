// SPDX-License-Identifier: Apache-2.0
// Numbers, sizes and durations as people write them: "25MiB", "120ms", "0.05". Independent of the
// locale; every format_* is read back exactly by its parse_*.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/time.h"

namespace paceline {

/// A whole decimal integer. Empty when anything else is in `text` or it does not fit.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text) noexcept;

/// A finite decimal number ("0.05", "1e-8").
[[nodiscard]] std::optional<double> parse_number(std::string_view text) noexcept;

/// Bytes: a number and one of B, kB, KB, MB, GB (powers of 1000), KiB, MiB, GiB (of 1024); without
/// a unit, bytes. "1.5MiB" is allowed, a fraction of a byte and a negative size are not.
[[nodiscard]] std::optional<std::int64_t> parse_size(std::string_view text) noexcept;

/// A number and one of ns, us, ms, s, m (minutes), h; a plain 0 needs no unit. Not negative.
[[nodiscard]] std::optional<Nanoseconds> parse_duration(std::string_view text) noexcept;

/// The shortest text that parses to the same double; always with a point or an exponent.
[[nodiscard]] std::string format_number(double value);
/// "25MiB", "1KiB", "1000".
[[nodiscard]] std::string format_size(std::int64_t bytes);
/// "30s", "120ms", "50us", "7ns"; "0s".
[[nodiscard]] std::string format_duration(Nanoseconds value);

/// A TOML basic string, quotes included.
[[nodiscard]] std::string toml_quoted(std::string_view text);

/// Bytes of the valid UTF-8 character that `text` begins with; 0 if there is none.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;

/// True for UTF-8 without control characters: what a text value may hold.
[[nodiscard]] bool printable_utf8(std::string_view text) noexcept;

}  // namespace paceline
