// SPDX-License-Identifier: Apache-2.0
// Local SGD and elastic averaging: backends whose ranks train apart and all meet every few steps.
#pragma once

#include "common/sync/backend.h"

namespace paceline {

/// sync=local. Each rank steps its own weights with its own optimizer; after every local.steps = H
/// steps the weights are averaged, weighted by the samples of each rank since the last average
/// (local SGD: Stich 2019; FedAvg: McMahan et al. 2017). Optimizer state stays local.
/// local.outer=nesterov (DiLoCo, Douillard et al. 2023): the ranks share an anchor, the average of
/// anchor - weights is a gradient for it, which SGD with local.outer_lr and Nesterov momentum
/// local.outer_momentum applies; all ranks go on from the anchor.
/// What is evaluated: the weighted average of the replicas.
[[nodiscard]] Backend local_backend();

/// sync=easgd (Zhang, Choromanska & LeCun 2015, the synchronous form). Every easgd.period steps,
/// with a = easgd.alpha (0: 0.9/N), b = N·a and all values before the exchange,
/// x_i <- x_i - a·(x_i - c) on every rank, c <- (1-b)·c + b·mean(x_i). Each rank holds the center
/// c, the same bits. x_i has this step's gradient already (the paper takes both from one x_i). The
/// mean is over ranks, whatever their samples. What is evaluated: the center.
[[nodiscard]] Backend easgd_backend();

}  // namespace paceline
