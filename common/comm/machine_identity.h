// SPDX-License-Identifier: Apache-2.0
// Which ranks of a job run on the same machine.
#pragma once

#include <string>

#include "common/comm/communicator.h"

namespace paceline {

/// Equal for processes that see each other in /proc; at most 95 bytes.
[[nodiscard]] std::string machine_identity();

/// How many ranks below this one run on this rank's machine. Collective.
[[nodiscard]] int local_rank(Communicator& workers);

}  // namespace paceline
