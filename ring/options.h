// SPDX-License-Identifier: Apache-2.0
// What the backends of this room take from a configuration for their connections.
#pragma once

#include <atomic>

#include "common/comm/transport.h"
#include "common/config/config.h"
#include "ring/collective.h"

namespace paceline {

[[nodiscard]] TransportOptions transport_options(const CommConfig& config);

/// The keys ring.*, sync.exact and comm.timeout; `stop` outlives the collective.
[[nodiscard]] CollectiveOptions collective_options(const Config& config,
                                                   const std::atomic<bool>& stop);

}  // namespace paceline
