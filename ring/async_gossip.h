// SPDX-License-Identifier: Apache-2.0
// Gossip in which nobody waits for a slow rank.
#pragma once

#include <memory>

#include "common/sync/backend.h"

namespace paceline {

/// sync=gossip with gossip.mode=asynchronous: AD-PSGD (Lian, Zhang, Zhang & Liu, "Asynchronous
/// Decentralized Parallel SGD", ICML 2018). A rank's x_i changes in two ways, at any time: its
/// training thread computes a gradient at a snapshot of x_i and applies it to x_i as it is by then,
/// and its communication thread replaces x_i and a partner's x_j by their mean. Even ranks begin
/// one averaging per step, with a partner that gossip_callee picks, beside the gradient
/// (sync.overlap=false: behind it, and the step ends with it); a step that finds the last one under
/// way does not wait for it. Odd ranks answer at any time, also while they compute and while they
/// wait in quiesce(), so how slow a rank is costs the others nothing. Averages are bucket by
/// bucket: each takes two buckets' values as they are at that moment and changes both by opposite
/// amounts, so the sum over ranks stays (to rounding), and updates that come in between stay on
/// top.
///
/// Staleness of a step: averagings of a bucket between its snapshot and its update, the most of all
/// buckets. Optimizer state stays local. Needs two ranks or more. What is evaluated: the mean of
/// all replicas; for it averagings pause, so that it is the mean at one point.
[[nodiscard]] std::unique_ptr<Synchronizer> make_async_gossip_synchronizer(
    const WorkerContext& context);

}  // namespace paceline
