// SPDX-License-Identifier: Apache-2.0
// Processors that the calling thread may run on: its affinity, which a launcher or a container may
// have narrowed.
#pragma once

#include <vector>

namespace paceline {

/// Their numbers, ascending; empty where the system does not tell (more than CPU_SETSIZE of them).
[[nodiscard]] std::vector<int> usable_processors();

/// How many there are, or where that is not told, how many are online; at least 1.
[[nodiscard]] int usable_cores();

}  // namespace paceline
