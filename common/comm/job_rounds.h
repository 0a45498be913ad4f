// SPDX-License-Identifier: Apache-2.0
// The collectives of a job's groups as its hub sees them: whose part has come, and who is waited
// for. Knows no sockets and no clock; used by one thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/comm/job_frame.h"

namespace paceline {

class JobRounds {
 public:
  /// `members`: the ranks 0..world-1, then the servers.
  JobRounds(std::size_t world, std::size_t members);

  /// Of a group, whose members are the first so many.
  [[nodiscard]] std::size_t size(JobGroup group) const noexcept;
  /// Whether the member is at this collective of its group; empty, or what it did instead, as in
  /// "rank 1 called a collective of the ranks" without the name.
  [[nodiscard]] std::string refusal(std::size_t member, const Gather& gather) const;
  /// Takes a part that is not refused: all parts once the last has come.
  [[nodiscard]] std::optional<GatherResult> contribute(std::size_t member, Gather gather);
  /// Whether a collective has begun and lacks the member's part.
  [[nodiscard]] bool awaits(std::size_t member) const noexcept;
  /// Who is missing in a collective that, with `elapsed`, has waited for `timeout`; empty: none.
  [[nodiscard]] std::vector<int> overdue(Nanoseconds elapsed, Nanoseconds timeout);

 private:
  struct Round {
    std::uint64_t sequence = 1;
    std::vector<std::optional<std::string>> blobs;  // by member
    std::size_t arrived = 0;
    Nanoseconds waited{0};
  };
  [[nodiscard]] const Round& round(JobGroup group) const noexcept {
    return rounds_[static_cast<std::size_t>(group)];
  }

  std::array<Round, kJobGroups> rounds_;
};

}  // namespace paceline
