// SPDX-License-Identifier: Apache-2.0
#include "common/comm/job_hello.h"

#include <fmt/format.h>

#include <algorithm>

namespace paceline {

namespace {

/// A digest as it may appear in a message: short, no control characters.
std::string printable(const std::string& digest) {
  constexpr std::size_t kShown = 16;
  std::string text = digest.substr(0, kShown);
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.empty() ? "none" : text;
}

}  // namespace

std::string member_name(int member, int world) {
  return member < world ? fmt::format("rank {}", member) : fmt::format("server {}", member - world);
}

std::string list_names(const std::vector<int>& members, int world) {
  std::string text;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i > 0) {
      text += i + 1 == members.size() ? " and " : ", ";
    }
    text += member_name(members[i], world);
  }
  return text;
}

std::optional<JobEnd> mistake_in(const Hello& hello, const JobSpec& job, std::uint16_t port) {
  if (hello.nonce != job.nonce) {
    return JobEnd{EndKind::other_job, fmt::format("the job at port {} is another one: its nonce is "
                                                  "not {:#x}",
                                                  port, hello.nonce)};
  }
  const auto members = static_cast<std::uint32_t>(job.world + job.servers);
  if (hello.member >= members) {
    return JobEnd{EndKind::config,
                  fmt::format("member number {} is outside 0..{}", hello.member, members - 1)};
  }
  const std::string name = member_name(static_cast<int>(hello.member), job.world);
  if (hello.world != static_cast<std::uint32_t>(job.world) ||
      hello.servers != static_cast<std::uint32_t>(job.servers)) {
    return JobEnd{EndKind::config,
                  fmt::format("{} expects {} ranks and {} servers, the job has {} and {}", name,
                              hello.world, hello.servers, job.world, job.servers)};
  }
  if (hello.digest != job.config_digest) {
    return JobEnd{EndKind::config,
                  fmt::format("{} runs another configuration (digest {} instead of {})", name,
                              printable(hello.digest), printable(job.config_digest))};
  }
  return std::nullopt;
}

}  // namespace paceline
