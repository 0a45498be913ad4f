// SPDX-License-Identifier: Apache-2.0
#include "ring/peer_wait.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "ring/executor.h"

namespace paceline {

void wait_for_peer(Transport& transport, const Ticket& ticket, Nanoseconds timeout,
                   const std::atomic<bool>& stop, std::string_view what) {
  Deadline deadline = Deadline::after(timeout);
  while (!transport.done(ticket)) {
    if (stop.load(std::memory_order_relaxed)) {
      throw Stopped();
    }
    if (transport.progress()) {
      deadline = Deadline::after(timeout);
    } else if (deadline.passed()) {
      throw TimeoutError(fmt::format("rank {}: rank {} did not {} within {:.1f} s (comm.timeout)",
                                     transport.rank(), ticket.peer, what,
                                     seconds(timeout.count())));
    } else {
      transport.idle(deadline);
    }
  }
}

}  // namespace paceline
