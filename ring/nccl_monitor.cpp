// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_monitor.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace paceline {

NcclMonitor::NcclMonitor(NcclCommunicators& comms, Gpu& gpu, GpuStream& stream, Nanoseconds timeout)
    : comms_(comms), gpu_(gpu), timeout_(timeout), watch_(gpu, stream), thread_([this] {
        loop();
      }) {}

NcclMonitor::~NcclMonitor() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void NcclMonitor::begin(std::optional<BucketId> bucket, std::int64_t step) {
  const std::scoped_lock lock(mutex_);
  next_ = {bucket, step, 0};
  watch_.start();
}

void NcclMonitor::end() {
  const std::scoped_lock lock(mutex_);
  watch_.stop();
  flights_.push_back(next_);
}

void NcclMonitor::collect() {
  const auto open = static_cast<std::ptrdiff_t>(watch_.open());
  flights_.erase(flights_.begin(), flights_.end() - open);
}

bool NcclMonitor::idle() {
  const std::scoped_lock lock(mutex_);
  collect();
  return flights_.empty();
}

double NcclMonitor::take_seconds() {
  const std::scoped_lock lock(mutex_);
  return watch_.take_seconds();
}

void NcclMonitor::look() {
  comms_.watch();
  const std::scoped_lock lock(mutex_);
  collect();
  if (flights_.empty()) {
    return;
  }
  Flight& oldest = flights_.front();
  if (oldest.seen_ns == 0) {
    oldest.seen_ns = watch_.first_begun() ? now_ns() : 0;
  } else if (now_ns() - oldest.seen_ns > timeout_.count()) {
    comms_.fail(std::make_exception_ptr(TimeoutError(fmt::format(
        "rank {} waited more than {:.1f} s for the other ranks in NCCL's collective (step {}, {})",
        comms_.rank(), seconds(timeout_.count()), oldest.step,
        oldest.bucket ? fmt::format("bucket {}", *oldest.bucket) : "statistics"))));
  }
}

void NcclMonitor::loop() {
  try {
    gpu_.make_current();
  } catch (...) {
    comms_.fail(std::current_exception());
    return;
  }
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kAbortPollInterval, [&] { return stop_; })) {
    lock.unlock();
    try {
      if (!comms_.failed()) {
        look();
      }
    } catch (...) {
      comms_.fail(std::current_exception());
    }
    lock.lock();
  }
}

}  // namespace paceline
