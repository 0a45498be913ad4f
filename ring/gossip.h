// SPDX-License-Identifier: Apache-2.0
// Gossip: no rank ever talks to all the others, each averages with one partner per step.
#pragma once

#include "common/sync/backend.h"

namespace paceline {

/// sync=gossip. With gossip.mode = synchronous each rank exchanges weights with one partner in
/// every step (gossip.graph; see gossip_partner) and then x_i <- (x_i + x_j)/2 - lr·update(g_i),
/// where both x and the gradient are of the step's begin: the exchange runs while the gradient is
/// computed. The pairs are fixed in advance, so a rank waits for its partner to reach the same step
/// (D-PSGD's synchrony, Lian et al. 2017, within pairs): there is no barrier and a slow rank delays
/// the others one pair at a time, but it does delay them. Staleness of a step: 1 if its weights
/// were averaged between being read and being updated, else 0. With gossip.mode = asynchronous
/// nobody waits (ring/async_gossip.h). Optimizer state stays local; the mean is over the two ranks,
/// whatever their samples. What is evaluated: the mean of all replicas.
[[nodiscard]] Backend gossip_backend();

}  // namespace paceline
