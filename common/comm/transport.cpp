// SPDX-License-Identifier: Apache-2.0
#include "common/comm/transport.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace paceline {

void Transport::wait(const Ticket& ticket, const Deadline& deadline) {
  while (!done(ticket)) {
    if (progress()) {
      continue;
    }
    if (deadline.passed()) {
      throw TimeoutError(fmt::format("rank {} waited too long for {} rank {} over {}", rank(),
                                     ticket.is_send ? "a send to" : "a message from", ticket.peer,
                                     name()));
    }
    idle(deadline);
  }
}

}  // namespace paceline
