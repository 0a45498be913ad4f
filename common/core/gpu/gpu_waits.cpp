// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "common/base/error.h"

namespace paceline {

namespace {

constexpr Nanoseconds kDrainAfterAbort = std::chrono::seconds(5);

/// Short waits cost little time, long ones little of the processor.
void pause_before_asking_again(int asked) {
  constexpr int kYields = 100;
  constexpr int kShortPauses = 1000;
  constexpr std::int64_t kShortNs = 20'000;
  constexpr std::int64_t kLongNs = 200'000;
  if (asked < kYields) {
    std::this_thread::yield();
  } else {
    sleep_until_ns(now_ns() + (asked < kYields + kShortPauses ? kShortNs : kLongNs));
  }
}

}  // namespace

int GpuWaits::poll(const Query& query, Nanoseconds timeout, bool heeds_abort) const {
  const Deadline deadline = Deadline::after(timeout);
  for (int asked = 0;; asked = std::min(asked + 1, 1 << 20)) {
    if (const int status = query(); status != cuda::kNotReady) {
      return status;
    }
    if (heeds_abort && abort_ != nullptr) {
      abort_->check();
    }
    if (deadline.passed()) {
      given_up_ = true;
      return cuda::kNotReady;
    }
    pause_before_asking_again(asked);
  }
}

void GpuWaits::until(const Query& query, std::string_view what) const {
  const int status = poll(query, given_up() ? Nanoseconds(0) : timeout_, true);
  if (status == cuda::kNotReady) {
    throw TimeoutError(
        fmt::format("GPU {} did not get to {} within {:.1f} s: its work is stuck, or slower than "
                    "that; look for "
                    "Xid in the kernel's log (dmesg), or raise comm.timeout, half of this limit",
                    index_, what, seconds(timeout_.count())));
  }
  module_.check(status, fmt::format("waiting for {}", what));
}

bool GpuWaits::drain(void* stream) const noexcept {
  const cuda::Api& api = module_.api();
  try {
    const bool aborted = abort_ != nullptr && abort_->requested();
    const Nanoseconds limit = aborted ? std::min(timeout_, kDrainAfterAbort) : timeout_;
    return poll([&] { return api.query_stream(stream); }, given_up() ? Nanoseconds(0) : limit,
                false) != cuda::kNotReady;
  } catch (...) {  // no memory for the query: nothing is known
    return false;
  }
}

}  // namespace paceline
