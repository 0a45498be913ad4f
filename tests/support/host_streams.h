// SPDX-License-Identifier: Apache-2.0
// The double's streams, events and graphs as functions of the module's table. A graph is what was
// queued while its stream was capturing, and as with CUDA a thread that captures may not allocate
// or wait; the double also refuses it events and copies from and to the host, which a graph of the
// program has none of.
#pragma once

#include <cstdint>
#include <functional>

#include "common/core/cuda/abi.h"

namespace paceline::test {

/// Those statuses of CUDA that captures give.
inline constexpr int kCaptureUnsupported = 900;
inline constexpr int kCaptureInvalidated = 901;

void add_host_streams(cuda::Api& api);

/// Queues a call's work on a stream, or records it.
int queue_host_work(void* stream, std::function<void()> work);

/// kSuccess, or where the calling thread captures what breaks its capture.
int refuse_in_capture();

/// Calls so far that made streams work: kernels, products, copies and graphs.
[[nodiscard]] std::int64_t host_launches();

}  // namespace paceline::test
