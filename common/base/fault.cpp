// SPDX-License-Identifier: Apache-2.0
#include "common/base/fault.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "common/base/error.h"

namespace paceline {

namespace {

constexpr std::array<std::string_view, 6> kPhases{"start",    "rendezvous", "forward",
                                                  "backward", "commit",     "last"};

template <typename T>
std::optional<T> whole_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

std::optional<FaultPhase> phase_named(std::string_view name) {
  const auto* const found = std::ranges::find(kPhases, name);
  if (found == kPhases.end()) {
    return std::nullopt;
  }
  return static_cast<FaultPhase>(found - kPhases.begin());
}

}  // namespace

std::optional<FaultPoint> parse_fault(std::string_view key, std::string_view text) {
  if (text.empty()) {
    return std::nullopt;
  }
  const auto refuse = [&] {
    return ConfigError(
        fmt::format("{} = \"{}\" is not allowed: it must be RANK@PHASE[:STEP] with "
                    "PHASE one of {}",
                    key, text.substr(0, 80), fmt::join(kPhases, ", ")));
  };
  const std::size_t at = text.find('@');
  if (at == std::string_view::npos) {
    throw refuse();
  }
  const std::string_view where = text.substr(at + 1);
  const std::size_t colon = where.find(':');
  const auto member = whole_number<int>(text.substr(0, at));
  const auto phase = phase_named(where.substr(0, colon));
  if (!member || !phase) {
    throw refuse();
  }
  FaultPoint point{*member, *phase, std::nullopt};
  if (colon != std::string_view::npos) {
    point.step = whole_number<std::int64_t>(where.substr(colon + 1));
    if (!point.step) {
      throw refuse();
    }
  }
  return point;
}

FaultInjector::FaultInjector(std::string_view kill, std::string_view stop, int member) {
  const auto arm = [&](std::string_view key, std::string_view text,
                       int signal) -> std::optional<Armed> {
    const std::optional<FaultPoint> point = parse_fault(key, text);
    if (!point || point->member != member) {
      return std::nullopt;
    }
    return Armed{*point, signal};
  };
  kill_ = arm("fault.kill", kill, SIGKILL);
  stop_ = arm("fault.stop", stop, SIGSTOP);
}

void FaultInjector::at(std::string_view phase, std::int64_t step) {
  for (std::optional<Armed>* fault : {&kill_, &stop_}) {
    if (!*fault || kPhases[static_cast<std::size_t>((*fault)->point.phase)] != phase ||
        (*fault)->point.step.value_or(step) != step) {
      continue;
    }
    const int signal = (*fault)->signal;
    fault->reset();  // a stopped process that is continued goes on
    ::kill(::getpid(), signal);
  }
}

}  // namespace paceline
