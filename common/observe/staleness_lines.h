// SPDX-License-Identifier: Apache-2.0
// What `train` and `compare` say about staleness under their table.
#pragma once

#include <string>
#include <vector>

#include "common/observe/summary.h"

namespace paceline {

/// One line for each summary with a stale update, none for the others; each ends with a newline:
/// "asgd: staleness mean 2.97, max 9; 0 1%, 2 30%, 3 44%, 4 25%, 5 <1%", the shares of updates.
[[nodiscard]] std::string staleness_lines(const std::vector<Summary>& summaries);

}  // namespace paceline
