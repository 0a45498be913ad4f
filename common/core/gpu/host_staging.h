// SPDX-License-Identifier: Apache-2.0
// Backends that keep their replica in host memory, for a model on a GPU.
#pragma once

#include <memory>

#include "common/core/gpu/gpu.h"
#include "common/sync/synchronizer.h"

namespace paceline {

/// Gives the model arenas on the GPU and `inner` page-locked ones on the host. A bucket's gradient
/// goes to the host on a stream of its own as soon as it is final, and to `inner` as soon as it is
/// there: from the calls of the seam that follow, at the latest from commit, so that the host never
/// waits while there is work to queue. Updated weights come back bucket by bucket, and the
/// compute stream waits for each, not the host.
///
/// bind() wants the Gpu that the model computes on; `inner` is bound to the host. Counted memory is
/// `inner`'s, whose arenas stand for the GPU's, and as staging those of the host.
[[nodiscard]] std::unique_ptr<Synchronizer> make_host_staged(std::unique_ptr<Synchronizer> inner);

}  // namespace paceline
