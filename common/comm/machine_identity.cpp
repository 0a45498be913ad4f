// SPDX-License-Identifier: Apache-2.0
#include "common/comm/machine_identity.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

namespace paceline {

std::string machine_identity() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::array<char, 48> pid_namespace{};
  if (readlink("/proc/self/ns/pid", pid_namespace.data(), pid_namespace.size() - 1) > 0) {
    text += pid_namespace.data();
  }
  constexpr std::size_t kLongest = 95;
  text.resize(std::min(text.size(), kLongest));
  return text;
}

int local_rank(Communicator& workers) {
  const std::vector<std::string> machines = workers.allgather(machine_identity());
  const auto mine = machines.begin() + workers.rank();
  return static_cast<int>(std::count(machines.begin(), mine, *mine));
}

}  // namespace paceline
