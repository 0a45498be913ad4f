// SPDX-License-Identifier: Apache-2.0
#include "common/config/value_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace paceline {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::array<Unit, 8> kSizeUnits{{{"B", 1},
                                          {"kB", 1000},
                                          {"KB", 1000},
                                          {"MB", 1'000'000},
                                          {"GB", 1'000'000'000},
                                          {"KiB", 1 << 10},
                                          {"MiB", 1 << 20},
                                          {"GiB", 1 << 30}}};

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::array<Unit, 6> kDurationUnits{{{"ns", 1},
                                              {"us", 1'000},
                                              {"ms", 1'000'000},
                                              {"s", kSecond},
                                              {"m", 60 * kSecond},
                                              {"h", 3600 * kSecond}}};

constexpr bool number_character(char c) noexcept {
  return (c >= '0' && c <= '9') || c == '.';
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// digits · factor, exactly for integers, else rounded when the product is whole to 1e-6.
std::optional<std::int64_t> scaled(std::string_view digits, std::int64_t factor) noexcept {
  if (const auto whole = parse_integer(digits)) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(*whole, factor, &product)) return std::nullopt;
    return product;
  }
  const auto number = parse_number(digits);
  if (!number) return std::nullopt;
  const double product = *number * static_cast<double>(factor);
  const double rounded = std::round(product);
  if (product > 9e18 || std::abs(product - rounded) > 1e-6 * std::max(1.0, product)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(rounded);
}

/// A number followed by a unit. `bare`: whether a number without a unit counts (factor 1).
std::optional<std::int64_t> with_unit(std::string_view text, std::span<const Unit> units,
                                      bool bare) noexcept {
  std::size_t end = 0;
  while (end < text.size() && number_character(text[end])) ++end;
  if (end == 0) return std::nullopt;
  const std::string_view digits = text.substr(0, end);
  const std::string_view name = trimmed(text.substr(end));
  if (name.empty()) {
    const auto value = scaled(digits, 1);
    return bare || value == 0 ? value : std::nullopt;
  }
  for (const Unit& unit : units) {
    if (unit.name == name) return scaled(digits, unit.factor);
  }
  return std::nullopt;
}

template <typename T>
std::optional<T> whole_number(std::string_view text) noexcept {
  if (text.empty() || text.front() == '+') return std::nullopt;
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) noexcept {
  return whole_number<std::int64_t>(text);
}

std::optional<double> parse_number(std::string_view text) noexcept {
  const auto value = whole_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<std::int64_t> parse_size(std::string_view text) noexcept {
  return with_unit(text, kSizeUnits, true);
}

std::optional<Nanoseconds> parse_duration(std::string_view text) noexcept {
  const auto ns = with_unit(text, kDurationUnits, false);
  return ns ? std::optional(Nanoseconds(*ns)) : std::nullopt;
}

std::string format_number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".eni") == std::string::npos) text += ".0";
  return text;
}

std::string format_size(std::int64_t bytes) {
  for (const auto& [name, factor] : {Unit{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}) {
    if (bytes != 0 && bytes % factor == 0) return fmt::format("{}{}", bytes / factor, name);
  }
  return fmt::format("{}", bytes);
}

std::string format_duration(Nanoseconds value) {
  const std::int64_t ns = value.count();
  for (const auto& [name, factor] :
       {Unit{"s", kSecond}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}) {
    if (ns % factor == 0) return fmt::format("{}{}", ns / factor, name);
  }
  return {};
}

std::string toml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::size_t utf8_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80             ? 1
                             : (lead & 0xe0) == 0xc0 ? 2
                             : (lead & 0xf0) == 0xe0 ? 3
                             : (lead & 0xf8) == 0xf0 ? 4
                                                     : 0;
  if (length == 0 || length > text.size()) return 0;
  std::uint32_t code = length == 1 ? lead : lead & (0x7fU >> length);
  for (std::size_t k = 1; k < length; ++k) {
    const auto next = static_cast<unsigned char>(text[k]);
    if ((next & 0xc0) != 0x80) return 0;
    code = (code << 6) | (next & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kSmallest[length] || code > 0x10ffff || surrogate ? 0 : length;
}

bool printable_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = utf8_length(text);
    const bool c1_control =
        lead == 0xc2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (length == 0 || lead < 0x20 || lead == 0x7f || c1_control) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace paceline
