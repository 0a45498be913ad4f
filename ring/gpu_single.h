// SPDX-License-Identifier: Apache-2.0
// sync=single with device=cuda: weights, gradients and the optimizer's state on the one GPU.
#pragma once

#include <memory>

#include "common/sync/backend.h"

namespace paceline {

/// bind() throws Error unless its Device is a Gpu. gradient_ready queues the bucket's update on the
/// compute stream, so that it is part of the step's work and nobody waits for it. With loss scaling
/// that of the last bucket waits on the host for the outcome of the step before, which is in the
/// step's report.
[[nodiscard]] std::unique_ptr<Synchronizer> make_gpu_single(const WorkerContext& context);

}  // namespace paceline
