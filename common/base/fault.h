// SPDX-License-Identifier: Apache-2.0
// Faults on purpose: a member of a job kills or stops itself at a named point of the run, so that
// tests can check what the others do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace paceline {

enum class FaultPhase : std::uint8_t { start, rendezvous, forward, backward, commit, last };

/// Where a fault strikes.
struct FaultPoint {
  int member = 0;  ///< rank, or world + s for server s
  FaultPhase phase = FaultPhase::start;
  std::optional<std::int64_t> step;  ///< none: the first time that the phase is reached
};

/// Reads "RANK@PHASE[:STEP]" as in fault.kill=1@backward:3. Throws ConfigError naming `key`, the
/// text and what is allowed. Nothing for an empty text.
[[nodiscard]] std::optional<FaultPoint> parse_fault(std::string_view key, std::string_view text);

/// One per member process.
class FaultInjector {
 public:
  /// `kill` and `stop` as in fault.kill and fault.stop. Throws ConfigError.
  FaultInjector(std::string_view kill, std::string_view stop, int member);

  /// The member reaches `phase` (a name of FaultPhase; others never strike) of `step`. Sends this
  /// process SIGKILL or SIGSTOP where that is asked for.
  void at(std::string_view phase, std::int64_t step = 0);

 private:
  struct Armed {
    FaultPoint point;
    int signal = 0;
  };
  std::optional<Armed> kill_;
  std::optional<Armed> stop_;
};

}  // namespace paceline
