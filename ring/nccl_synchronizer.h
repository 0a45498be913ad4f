// SPDX-License-Identifier: Apache-2.0
// Synchronous data parallelism with weights, gradients and the optimizer's state on each rank's
// GPU, and NCCL between them: the flat sum of sync=nccl, or that of sync=hierarchical or sharded.
#pragma once

#include <memory>

#include "common/sync/backend.h"

namespace paceline {

/// One per rank and GPU; bind() is collective and throws Error unless its Device is a Gpu. Work is
/// queued on a stream of its own, of high priority: gradient_ready makes it wait for the bucket's
/// event, sum the bucket and update its weights (scaled by 1 / global samples), parameters_needed
/// makes the given stream wait for that; the host waits for neither. Buckets go in the order of
/// gradient_ready (at commit with sync.overlap=false, then in the order of sync.priority).
///
/// clip_norm: the norm and the factor stay on the device. skip_nonfinite (loss scaling): the next
/// step's first parameters_needed waits on the host until the norm is known, once a step; its
/// outcome is in that step's report.
///
/// sync.wire=fp16 sends averages, as sync=ring does. A mean gradient beyond 65504 turns infinite,
/// which loss scaling skips; without it begin_step(), commit() or quiesce() throws the Error that
/// sync=ring throws as soon as the host hears of it, by quiesce() at the latest: the host does not
/// wait, so that the update is already in the weights.
///
/// norm.kind = sync_batch: bind() has the context's StatisticsReducer sum in the GPU's memory, by
/// NCCL between the buckets; the host does not wait for those either.
///
/// StepReport::communication_s is device time of the collectives that have ended, waiting for
/// slower ranks included. NCCL tells neither bytes, nor who was late, nor when: bytes_sent, wait_s
/// and transfers stay empty.
[[nodiscard]] std::unique_ptr<Synchronizer> make_nccl_synchronizer(const WorkerContext& context);

}  // namespace paceline
