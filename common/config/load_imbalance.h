// SPDX-License-Identifier: Apache-2.0
// fault.slow_rank and fault.jitter as text: which ranks take longer for a step, and how step times
// scatter.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace paceline {

/// No step is stretched by more.
inline constexpr double kMostStretch = 1000.0;

/// "2:4x" or "0:2x,2:1.5x": for each of `world` ranks the factor of its step time, 1 where the text
/// says nothing. Throws ConfigError naming fault.slow_rank: a rank outside the world or named
/// twice, a factor below 1 or above kMostStretch, anything else that is not RANK:FACTORx.
[[nodiscard]] std::vector<double> parse_slow_ranks(std::string_view text, int world);

enum class JitterKind : std::uint8_t { none, uniform, normal, lognormal, exponential };

/// A step takes 1 + J times its time, J >= 0 (a step can be delayed, not hurried):
///   uniform:a      J uniform in [0, a)                    mean a/2
///   normal:s       J = |s·z|, z standard normal           mean s·sqrt(2/pi)
///   lognormal:s    1 + J = exp(|s·z|)                     mean of J: 2·exp(s²/2)·Phi(s) - 1
///   exponential:m  J exponential of mean m                mean m
struct Jitter {
  JitterKind kind = JitterKind::none;
  double amount = 0.0;
};

/// "none" or KIND:AMOUNT. Throws ConfigError naming fault.jitter: an unknown kind, an amount that
/// is no number above 0 and up to 10.
[[nodiscard]] Jitter parse_jitter(std::string_view text);

}  // namespace paceline
