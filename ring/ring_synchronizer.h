// SPDX-License-Identifier: Apache-2.0
// Synchronous data parallelism by collectives: every rank holds all weights, and each bucket is
// summed and updated at once (bucket_work.h). Serves sync=ring, sharded, hierarchical and single.
#pragma once

#include <memory>

#include "common/sync/backend.h"

namespace paceline {

enum class RingFlavour : std::uint8_t { ring, hierarchical, single, sharded };

/// Collective over context.workers. One communication thread takes the buckets in the order in
/// which gradient_ready hands them over (at commit with sync.overlap=false), sums each, and
/// updates its weights; parameters_needed waits for that. The update of a bucket is skipped where
/// no rank contributed a sample.
///
/// StepReport::wait_s is the part of the time that the seam blocked in which a bucket's collective
/// had begun here but some rank had not begun it (each announces itself to all with an empty
/// message), or in which rank 0 had not told which bucket is next. The rank whose announcement
/// came last is the one that was waited for. communication_s adds up the duration of the
/// collectives.
[[nodiscard]] std::unique_ptr<Synchronizer> make_ring_synchronizer(const WorkerContext& context,
                                                                   RingFlavour flavour);

}  // namespace paceline
