// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_streams.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/host_log.h"
#include "tests/support/host_stream.h"

namespace paceline::test {

namespace {

using cuda::kSuccess;

constexpr int kIllegalState = 401;

struct HostGraph {
  std::vector<std::function<void()>> work;
};

/// What a thread records.
struct HostCapture {
  void* stream = nullptr;  // null: nothing
  bool broken = false;
  std::vector<std::function<void()>> work;
};

HostCapture& capture() {
  thread_local HostCapture of_thread;
  return of_thread;
}

std::atomic<std::int64_t>& launches() {
  static std::atomic<std::int64_t> count = 0;
  return count;
}

HostStream& stream_of(void* stream) {
  return *static_cast<HostStream*>(stream);
}

HostEvent& event_of(void* event) {
  return *static_cast<HostEvent*>(event);
}

/// Of the calling thread, or of another that captures the stream.
int refuse_on(void* stream) {
  const int refused = refuse_in_capture();
  return refused == kSuccess && stream_of(stream).capturing() ? kCaptureUnsupported : refused;
}

int create_stream(void** stream, int /*high_priority*/) {
  *stream = std::make_unique<HostStream>().release();
  return kSuccess;
}

int destroy_stream(void* stream) {
  const std::unique_ptr<HostStream> owned(&stream_of(stream));
  return kSuccess;
}

int query_stream(void* stream) {
  if (const int refused = refuse_on(stream); refused != kSuccess) {
    return refused;
  }
  return stream_of(stream).idle() ? kSuccess : cuda::kNotReady;
}

int create_event(void** event, int /*timed*/) {
  *event = std::make_unique<HostEvent>().release();
  return kSuccess;
}

int destroy_event(void* event) {
  const std::unique_ptr<HostEvent> owned(&event_of(event));
  return kSuccess;
}

int record_event(void* event, void* stream) {
  host_log().add({"record", stream, event});
  if (const int refused = refuse_on(stream); refused != kSuccess) {
    return refused;
  }
  stream_of(stream).record(event_of(event));
  return kSuccess;
}

int wait_event(void* stream, void* event) {
  host_log().add({"wait", stream, event});
  if (const int refused = refuse_on(stream); refused != kSuccess) {
    return refused;
  }
  stream_of(stream).wait(event_of(event));
  return kSuccess;
}

int query_event(void* event) {
  if (const int refused = refuse_in_capture(); refused != kSuccess) {
    return refused;
  }
  const auto point = event_of(event).point();
  return point == nullptr || point->reached() ? kSuccess : cuda::kNotReady;
}

/// By the host's clock: no GPU's time.
int elapsed_ms(float* ms, void* begin, void* end) {
  constexpr double kNsPerMs = 1e6;
  const auto from = event_of(begin).point();
  const auto to = event_of(end).point();
  if (from == nullptr || to == nullptr) {
    return 400;  // cudaErrorInvalidResourceHandle
  }
  if (!from->reached() || !to->reached()) {
    return cuda::kNotReady;
  }
  *ms = static_cast<float>(static_cast<double>(to->reached_ns() - from->reached_ns()) / kNsPerMs);
  return kSuccess;
}

int begin_capture(void* stream) {
  if (capture().stream != nullptr || stream_of(stream).capturing()) {
    return kIllegalState;
  }
  stream_of(stream).capture(true);
  capture() = {stream, false, {}};
  return kSuccess;
}

int end_capture(void* stream, void** graph) {
  *graph = nullptr;
  HostCapture ended = std::exchange(capture(), {});
  if (ended.stream != stream) {
    return kIllegalState;
  }
  stream_of(stream).capture(false);
  if (ended.broken) {
    return kCaptureInvalidated;
  }
  *graph = std::make_unique<HostGraph>(HostGraph{std::move(ended.work)}).release();
  return kSuccess;
}

int launch_graph(void* graph, void* stream) {
  if (const int refused = refuse_in_capture(); refused != kSuccess) {
    return refused;
  }
  host_log().add({"graph", stream, graph});
  return queue_host_work(stream, [work = static_cast<HostGraph*>(graph)->work] {
    for (const auto& part : work) {
      part();
    }
  });
}

int destroy_graph(void* graph) {
  const std::unique_ptr<HostGraph> owned(static_cast<HostGraph*>(graph));
  return kSuccess;
}

}  // namespace

void add_host_streams(cuda::Api& api) {
  api.create_stream = create_stream;
  api.destroy_stream = destroy_stream;
  api.query_stream = query_stream;
  api.create_event = create_event;
  api.destroy_event = destroy_event;
  api.record_event = record_event;
  api.wait_event = wait_event;
  api.query_event = query_event;
  api.elapsed_ms = elapsed_ms;
  api.begin_capture = begin_capture;
  api.end_capture = end_capture;
  api.launch_graph = launch_graph;
  api.destroy_graph = destroy_graph;
}

int queue_host_work(void* stream, std::function<void()> work) {
  if (HostCapture& recorded = capture(); recorded.stream == stream) {
    if (recorded.broken) {
      return kCaptureInvalidated;
    }
    recorded.work.push_back(std::move(work));
    return kSuccess;
  }
  if (stream_of(stream).capturing()) {
    return kCaptureUnsupported;
  }
  ++launches();
  stream_of(stream).queue(std::move(work));
  return kSuccess;
}

int refuse_in_capture() {
  if (capture().stream == nullptr) {
    return kSuccess;
  }
  capture().broken = true;
  return kCaptureUnsupported;
}

std::int64_t host_launches() {
  return launches();
}

}  // namespace paceline::test
