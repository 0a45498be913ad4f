// SPDX-License-Identifier: Apache-2.0
#include "common/core/step_stretch.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/core/random.h"

namespace paceline {

namespace {

/// In (0, 1], so that its logarithm is finite.
double jitter_uniform(std::uint64_t key, std::uint64_t i) noexcept {
  return 1.0 - static_cast<double>(uniform01(key, i));
}

/// Box & Muller 1958.
double jitter_normal(std::uint64_t key, std::uint64_t i) noexcept {
  return std::sqrt(-2.0 * std::log(jitter_uniform(key, 2 * i))) *
         std::cos(2.0 * std::numbers::pi * jitter_uniform(key, 2 * i + 1));
}

double jitter_of(const Jitter& jitter, std::uint64_t key, std::uint64_t i) noexcept {
  switch (jitter.kind) {
    case JitterKind::uniform:
      return jitter.amount * static_cast<double>(uniform01(key, i));
    case JitterKind::normal:
      return std::abs(jitter.amount * jitter_normal(key, i));
    case JitterKind::lognormal:
      return std::expm1(std::abs(jitter.amount * jitter_normal(key, i)));
    case JitterKind::exponential:
      return -jitter.amount * std::log(jitter_uniform(key, i));
    case JitterKind::none:
      break;
  }
  return 0.0;
}

}  // namespace

StepStretch::StepStretch(const Config& config, int rank)
    : slow_(parse_slow_ranks(config.fault.slow_rank, config.world)
                .at(static_cast<std::size_t>(rank))),
      jitter_(parse_jitter(config.fault.jitter)),
      key_(stream_key(stream_key(config.seed, "fault.jitter"), static_cast<std::uint64_t>(rank))) {}

double StepStretch::factor(std::int64_t step) const noexcept {
  const double jitter = jitter_of(jitter_, key_, static_cast<std::uint64_t>(step));
  return std::min(slow_ * (1.0 + jitter), kMostStretch);
}

}  // namespace paceline
