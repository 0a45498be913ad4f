// SPDX-License-Identifier: Apache-2.0
// Hogwild! on one GPU: workers are streams over one weight arena.
#pragma once

#include <memory>

#include "common/sync/backend.h"

namespace paceline {

/// Every worker's update of a bucket is queued on its own compute stream, behind the bucket's
/// gradient, and writes the shared arena while the other workers' kernels read and write it. What
/// it relies on: an aligned 32-bit load or store of a GPU is whole, so a weight is always some
/// worker's value; loads and stores are relaxed, and an update between another's load and store of
/// the same weight is lost, as Hogwild! allows. Nothing orders workers but quiesce.
///
/// bind() wants Gpus of one device. Staleness counts updates as they are queued.
[[nodiscard]] std::unique_ptr<Synchronizer> make_gpu_hogwild(const WorkerContext& context);

/// Throws ConfigError for what needs a worker's whole gradient (clipping, a scaled loss).
void validate_gpu_hogwild(const Config& config);

}  // namespace paceline
