// SPDX-License-Identifier: Apache-2.0
#include "common/comm/job_rounds.h"

#include <fmt/format.h>

#include <utility>

namespace paceline {

JobRounds::JobRounds(std::size_t world, std::size_t members) {
  rounds_[static_cast<std::size_t>(JobGroup::workers)].blobs.resize(world);
  rounds_[static_cast<std::size_t>(JobGroup::everyone)].blobs.resize(members);
}

std::size_t JobRounds::size(JobGroup group) const noexcept {
  return round(group).blobs.size();
}

std::string JobRounds::refusal(std::size_t member, const Gather& gather) const {
  const Round& now = round(gather.group);
  if (member >= now.blobs.size()) {
    return "called a collective of the ranks";
  }
  if (gather.sequence != now.sequence || now.blobs[member]) {
    return fmt::format("is at collective {}, the others are at {}", gather.sequence, now.sequence);
  }
  return {};
}

std::optional<GatherResult> JobRounds::contribute(std::size_t member, Gather gather) {
  Round& now = rounds_[static_cast<std::size_t>(gather.group)];
  now.blobs.at(member) = std::move(gather.blob);
  if (++now.arrived < now.blobs.size()) {
    return std::nullopt;
  }
  GatherResult result{gather.group, now.sequence++, {}};
  for (std::optional<std::string>& blob : now.blobs) {
    result.blobs.push_back(std::move(*blob));
    blob.reset();
  }
  now.arrived = 0;
  now.waited = Nanoseconds(0);
  return result;
}

bool JobRounds::awaits(std::size_t member) const noexcept {
  for (const Round& now : rounds_) {
    if (now.arrived > 0 && member < now.blobs.size() && !now.blobs[member]) {
      return true;
    }
  }
  return false;
}

std::vector<int> JobRounds::overdue(Nanoseconds elapsed, Nanoseconds timeout) {
  std::vector<int> missing;
  for (Round& now : rounds_) {
    if (now.arrived == 0 || (now.waited += elapsed) < timeout || !missing.empty()) {
      continue;
    }
    for (std::size_t member = 0; member < now.blobs.size(); ++member) {
      if (!now.blobs[member]) {
        missing.push_back(static_cast<int>(member));
      }
    }
  }
  return missing;
}

}  // namespace paceline
