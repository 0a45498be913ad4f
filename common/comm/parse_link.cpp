// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/comm/emulated_nic.h"

namespace paceline {

namespace {

using Unit = std::pair<std::string_view, double>;

constexpr std::array<Unit, 4> kRates{
    {{"gbit", 1e9 / 8}, {"mbit", 1e6 / 8}, {"kbit", 1e3 / 8}, {"bit", 1.0 / 8}}};
constexpr std::array<Unit, 4> kTimes{{{"ns", 1.0}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
constexpr double kLongestLatencyNs = 60e9;

/// "1.5gbit" with the units of `units`; nothing unless all of `text` is one number and one unit.
template <std::size_t N>
std::optional<double> parse_quantity(std::string_view text, const std::array<Unit, N>& units) {
  double value = 0.0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0.0) {
    return std::nullopt;
  }
  const std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  for (const auto& [name, factor] : units) {
    if (unit == name) {
      return value * factor;
    }
  }
  return std::nullopt;
}

}  // namespace

LinkSpec parse_link(std::string_view key, std::string_view text) {
  if (text == "none") {
    return {};
  }
  const std::size_t comma = text.find(',');
  if (comma != std::string_view::npos) {
    const auto rate = parse_quantity(text.substr(0, comma), kRates);
    const auto latency = parse_quantity(text.substr(comma + 1), kTimes);
    if (rate && *rate > 0.0 && latency && *latency <= kLongestLatencyNs) {
      return {*rate, Nanoseconds(std::llround(*latency))};
    }
  }
  throw ConfigError(
      fmt::format("{}=\"{}\": allowed are \"none\" and \"RATE,LATENCY\", a rate above 0 in bit, "
                  "kbit, mbit or gbit and a latency of at most 60s in ns, us, ms or s, as in "
                  "\"1gbit,50us\"",
                  key, text));
}

}  // namespace paceline
