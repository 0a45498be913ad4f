// SPDX-License-Identifier: Apache-2.0
#include "common/config/load_imbalance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/config/value_text.h"

namespace paceline {

namespace {

constexpr double kMostJitter = 10.0;
constexpr std::array<std::pair<std::string_view, JitterKind>, 4> kJitterKinds{{
    {"uniform", JitterKind::uniform},
    {"normal", JitterKind::normal},
    {"lognormal", JitterKind::lognormal},
    {"exponential", JitterKind::exponential},
}};

ConfigError slow_rank_error(std::string_view text, std::string_view what) {
  return ConfigError(fmt::format(
      "fault.slow_rank = {} {}; allowed: RANK:FACTORx with a factor from 1 to {}, several with "
      "commas between them, as in 0:2x,2:4x",
      toml_quoted(text.substr(0, 80)), what, kMostStretch));
}

/// "2:4x" as rank and factor; nothing if it is not of that form.
std::optional<std::pair<std::int64_t, double>> parse_slow_rank(std::string_view entry) {
  const std::size_t colon = entry.find(':');
  if (colon == std::string_view::npos || !entry.ends_with('x')) {
    return std::nullopt;
  }
  const auto rank = parse_integer(entry.substr(0, colon));
  const auto factor = parse_number(entry.substr(colon + 1, entry.size() - colon - 2));
  if (!rank || !factor) {
    return std::nullopt;
  }
  return std::pair{*rank, *factor};
}

}  // namespace

std::vector<double> parse_slow_ranks(std::string_view text, int world) {
  std::vector<double> factors(static_cast<std::size_t>(world), 1.0);
  std::vector<bool> named(factors.size());
  for (std::string_view left = text; !text.empty();) {
    const std::size_t comma = std::min(left.find(','), left.size());
    const auto entry = parse_slow_rank(left.substr(0, comma));
    if (!entry) {
      throw slow_rank_error(text, "is not of that form");
    }
    const auto [rank, factor] = *entry;
    if (rank < 0 || rank >= world) {
      throw slow_rank_error(
          text, fmt::format("names rank {}, the job's ranks are 0 to {}", rank, world - 1));
    }
    if (factor < 1.0 || factor > kMostStretch) {
      throw slow_rank_error(text, fmt::format("has the factor {}", factor));
    }
    const auto index = static_cast<std::size_t>(rank);
    if (named[index]) {
      throw slow_rank_error(text, fmt::format("names rank {} twice", rank));
    }
    named[index] = true;
    factors[index] = factor;
    if (comma == left.size()) {
      break;
    }
    left.remove_prefix(comma + 1);
  }
  return factors;
}

Jitter parse_jitter(std::string_view text) {
  if (text == "none") {
    return {};
  }
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto* const kind = std::ranges::find(kJitterKinds, text.substr(0, colon),
                                             &std::pair<std::string_view, JitterKind>::first);
  const auto amount = colon < text.size() ? parse_number(text.substr(colon + 1)) : std::nullopt;
  if (kind == kJitterKinds.end() || !amount || *amount <= 0.0 || *amount > kMostJitter) {
    throw ConfigError(fmt::format(
        "fault.jitter = {} is not allowed: it must be none, or uniform, normal, lognormal or "
        "exponential with a number above 0 and up to {}, as in uniform:0.2",
        toml_quoted(text.substr(0, 80)), kMostJitter));
  }
  return {kind->second, *amount};
}

}  // namespace paceline
