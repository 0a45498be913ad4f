// SPDX-License-Identifier: Apache-2.0
// Hogwild! (Niu, Recht, Ré, Wright 2011): threads update one shared weight buffer without locks.
#pragma once

#include <memory>

#include "common/sync/backend.h"

namespace paceline {

/// sync=hogwild. Workers are threads of one process. Each applies its own optimizer (with its own
/// momentum or moments) to the shared weights as soon as a bucket's gradient is final; elements are
/// read and written with relaxed atomics, so concurrent updates may overwrite each other, as the
/// paper allows. An update is the mean over that worker's samples. Staleness of a step: updates
/// that other workers finished between its begin_step and its commit.
///
/// With a sparse model (logistic) and plain SGD an update reads and writes only the weights of the
/// features that occur in the batch, as in the paper.
///
/// With device=cuda see gpu_hogwild.h.
[[nodiscard]] Backend hogwild_backend();

}  // namespace paceline
