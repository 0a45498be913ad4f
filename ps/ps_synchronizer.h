// SPDX-License-Identifier: Apache-2.0
// The seam over the parameter server: gradient_ready pushes, parameters_needed waits for the
// answer.
#pragma once

#include <memory>

#include "common/sync/backend.h"
#include "ps/apply_policy.h"

namespace paceline {

/// Collective over the job's members. With ps.placement=colocated the first ps.servers ranks run a
/// server each on a thread of their own.
[[nodiscard]] std::unique_ptr<Synchronizer> make_ps_synchronizer(const WorkerContext& context,
                                                                 const PsRule& rule);

/// Body of a server process: returns when all workers have said goodbye.
void serve_ps(const ServerContext& context, const PsRule& rule);

}  // namespace paceline
