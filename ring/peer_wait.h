// SPDX-License-Identifier: Apache-2.0
// A communication thread's wait for one message.
#pragma once

#include <atomic>
#include <string_view>

#include "common/base/time.h"
#include "common/comm/transport.h"

namespace paceline {

/// Moves `transport` on until `ticket` is done. Throws TimeoutError ("rank 1: rank 0 did not `what`
/// within ...") when nothing moves for `timeout`, Stopped soon after `stop` turns true, and what
/// Transport::progress does.
void wait_for_peer(Transport& transport, const Ticket& ticket, Nanoseconds timeout,
                   const std::atomic<bool>& stop, std::string_view what);

}  // namespace paceline
