// SPDX-License-Identifier: Apache-2.0
// The seam over the parameter server: gradient_ready pushes, parameters_needed waits for the
// answer.
//
// With sync.wire=fp16|bf16 a push carries gradient/samples in 16 bits and its answer the weights in
// 16 bits; servers keep fp32 weights and round once per version. Pulls (bind, quiesce) stay fp32;
// the next step rounds what they brought, so that it reads what a push's answer would have been.
// With compress.method a push carries the codec's message per key, encoded on the training thread
// with each worker's own error feedback; answers are fp32. A BSP update that is left out because a
// gradient was not finite loses what its messages carried: error feedback keeps what they lacked
// only. (With ssp and asp the worker sees it before it encodes, and loses its own gradient alone.)
//
// A rank that runs a server (ps.placement=colocated) counts it in MemoryUse; server processes are
// on no rank's account. StepReport::transfers are from a push until its last answer is installed,
// what a server held it for slower workers included.
#pragma once

#include <memory>

#include "common/sync/backend.h"
#include "ps/apply_policy.h"
#include "ps/server_job.h"

namespace paceline {

/// Collective over the job's members. With ps.placement=colocated the first ps.servers ranks run a
/// server each on a thread of their own.
[[nodiscard]] std::unique_ptr<Synchronizer> make_ps_synchronizer(const WorkerContext& context,
                                                                 const PsRule& rule,
                                                                 CudaSource cuda = cuda_module);

/// Body of a server process: returns when all workers have said goodbye.
void serve_ps(const ServerContext& context, const PsRule& rule, CudaSource cuda = cuda_module);

}  // namespace paceline
