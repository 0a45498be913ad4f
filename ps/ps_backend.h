// SPDX-License-Identifier: Apache-2.0
// The row of --sync=ps in the table of backends.
#pragma once

#include "common/sync/backend.h"
#include "ps/apply_policy.h"

namespace paceline {

[[nodiscard]] Backend ps_backend();

/// The rule that ps.consistency and ps.staleness ask for.
[[nodiscard]] PsRule ps_rule(const Config& config);

/// What holds for every backend over the parameter server. Throws ConfigError naming the key.
void validate_ps(const Config& config, const PsRule& rule);

/// Server processes that the job needs: none with ps.placement=colocated.
[[nodiscard]] int ps_server_processes(const Config& config);

}  // namespace paceline
