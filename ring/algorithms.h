// SPDX-License-Identifier: Apache-2.0
// The algorithms behind build_schedule. Each lists one rank's operations in a sequential order that
// is the same on every rank as far as one peer and direction are concerned.
#pragma once

#include <span>

#include "common/comm/topology.h"
#include "ring/schedule_builder.h"

namespace paceline::algorithms {

/// Chunk c travels c+1, c+2, .., c and is summed on the way.
void ring_reduce_scatter(ScheduleBuilder& builder);
/// Chunk c travels c, c+1, .., c-1.
void ring_allgather(ScheduleBuilder& builder);

/// The same among `members` (ranks, ascending) over the elements of `range`. `position` is this
/// rank's place in `members`.
void ring_reduce_scatter(ScheduleBuilder& builder, std::span<const int> members, int position,
                         Range range);
void ring_allgather(ScheduleBuilder& builder, std::span<const int> members, int position,
                    Range range);

void direct_reduce_scatter(ScheduleBuilder& builder);
void direct_allgather(ScheduleBuilder& builder);

/// count() is a multiple of 2·world().
void direct_all_to_all(ScheduleBuilder& builder);

void oneshot_allreduce(ScheduleBuilder& builder);
void tree_allreduce(ScheduleBuilder& builder);
void halving_doubling_allreduce(ScheduleBuilder& builder);
void doubling_allreduce(ScheduleBuilder& builder);
void hierarchical_allreduce(ScheduleBuilder& builder, const Topology& topology);

}  // namespace paceline::algorithms
