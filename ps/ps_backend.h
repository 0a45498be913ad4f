// SPDX-License-Identifier: Apache-2.0
// The row of --sync=ps in the table of backends.
#pragma once

#include "common/sync/backend.h"
#include "ps/apply_policy.h"

namespace paceline {

[[nodiscard]] Backend ps_backend();

/// The rule that ps.consistency, ps.staleness and async.* ask for.
[[nodiscard]] PsRule ps_rule(const Config& config);
/// `kind` with what async.* asks for.
[[nodiscard]] PsRule with_async(PsRule kind, const AsyncConfig& async);

/// What holds for every backend over the parameter server. Throws ConfigError naming the key.
void validate_ps(const Config& config, const PsRule& rule);

/// For a run that applies no stale gradients on a server: throws ConfigError unless async.* is left
/// as it is by default.
void refuse_async(const AsyncConfig& async);

/// Server processes that the job needs: none with ps.placement=colocated.
[[nodiscard]] int ps_server_processes(const Config& config);

}  // namespace paceline
