// SPDX-License-Identifier: Apache-2.0
// Runs a function as the ranks of a small job of its own, for benchmarks.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/abort.h"
#include "common/base/time.h"
#include "common/comm/communicator.h"

namespace paceline {

using RankBody = std::function<void(Communicator& workers, AbortToken& abort)>;

/// Both return 0, or 1 after printing the first failure as one line to stderr.

/// Ranks are threads.
[[nodiscard]] int run_thread_ranks(int world, Nanoseconds timeout, const RankBody& body);

/// Ranks are forked processes, joined by a control plane on loopback; none outlives the call. The
/// calling process must have one thread. Once one has failed, the others have twice `timeout` to
/// end before they are killed.
[[nodiscard]] int run_process_ranks(int world, Nanoseconds timeout, const RankBody& body);

/// What `body` returns or throws (ConfigError, or any other exception as Error), run in a forked
/// process: what it opens, such as CUDA, is not opened in this one, which can fork again. Throws
/// TimeoutError naming `what` it does after killing it when it takes longer than `timeout`. The
/// calling process must have one thread.
std::string run_alone(std::string_view what, Nanoseconds timeout,
                      const std::function<std::string()>& body);

}  // namespace paceline
