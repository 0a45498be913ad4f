// SPDX-License-Identifier: Apache-2.0
#include "common/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace paceline {

std::vector<int> usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> numbers;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) {
        numbers.push_back(cpu);
      }
    }
  }
  return numbers;
}

int usable_cores() {
  const std::vector<int> numbers = usable_processors();
  return numbers.empty() ? std::max(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), 1)
                         : static_cast<int>(numbers.size());
}

}  // namespace paceline
