// SPDX-License-Identifier: Apache-2.0
// Which efficiency techniques go with collectives, checked before any process starts.
#pragma once

#include "common/config/config.h"

namespace paceline {

/// Throws ConfigError naming key, value and reason: formats on the wire, compressors and 1-bit Adam
/// under allreduce. `flat`: no algorithm that sums within nodes first or along a tree.
void check_collective_techniques(const Config& config, bool flat);

/// The same where each rank's optimizer steps a shard of the weights.
void check_sharded_techniques(const Config& config);

/// The same where one worker sends nothing at all.
void check_no_wire(const Config& config);

}  // namespace paceline
