// SPDX-License-Identifier: Apache-2.0
// The row of --sync=asgd: asynchronous SGD, each gradient applied when it arrives (Dean et al.
// 2012, Downpour SGD with one step between pulls), over the parameter server; on demand with a
// learning rate by staleness or delay compensation (async.*, ps/apply_policy.h).
#pragma once

#include "common/sync/backend.h"

namespace paceline {

/// ASP, whatever ps.consistency says; the other ps.* keys hold.
[[nodiscard]] Backend asgd_backend();

}  // namespace paceline
