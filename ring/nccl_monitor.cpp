// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_monitor.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/error.h"

namespace paceline {

NcclMonitor::NcclMonitor(NcclCommunicators& comms, Gpu& gpu, GpuStream& stream, Nanoseconds timeout)
    : comms_(comms), gpu_(gpu), stream_(stream), timeout_(timeout), thread_([this] { loop(); }) {}

NcclMonitor::~NcclMonitor() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

std::unique_ptr<GpuEvent> NcclMonitor::event() {
  if (spare_.empty()) {
    return std::make_unique<GpuEvent>(gpu_, true);
  }
  std::unique_ptr<GpuEvent> taken = std::move(spare_.back());
  spare_.pop_back();
  return taken;
}

void NcclMonitor::begin(BucketId bucket, std::int64_t step) {
  const std::scoped_lock lock(mutex_);
  next_ = {bucket, step, event(), event(), 0};
  stream_.record(*next_.begun);
}

void NcclMonitor::end() {
  const std::scoped_lock lock(mutex_);
  stream_.record(*next_.ended);
  flights_.push_back(std::move(next_));
}

void NcclMonitor::collect() {
  while (!flights_.empty() && flights_.front().ended->reached()) {
    Flight& flight = flights_.front();
    seconds_ += flight.ended->seconds_since(*flight.begun);
    spare_.push_back(std::move(flight.begun));
    spare_.push_back(std::move(flight.ended));
    flights_.pop_front();
  }
}

bool NcclMonitor::idle() {
  const std::scoped_lock lock(mutex_);
  collect();
  return flights_.empty();
}

double NcclMonitor::take_seconds() {
  const std::scoped_lock lock(mutex_);
  collect();
  return std::exchange(seconds_, 0.0);
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
    oldest.seen_ns = oldest.begun->reached() ? now_ns() : 0;
  } else if (now_ns() - oldest.seen_ns > timeout_.count()) {
    comms_.fail(std::make_exception_ptr(TimeoutError(fmt::format(
        "rank {} waited more than {:.1f} s for the other ranks in NCCL's collective (step {}, "
        "bucket {})",
        comms_.rank(), seconds(timeout_.count()), oldest.step, oldest.bucket))));
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
