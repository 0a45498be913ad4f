// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_stopwatch.h"

#include <utility>

namespace paceline {

std::unique_ptr<GpuEvent> GpuStopwatch::event() {
  if (spare_.empty()) {
    return std::make_unique<GpuEvent>(gpu_, true);
  }
  std::unique_ptr<GpuEvent> taken = std::move(spare_.back());
  spare_.pop_back();
  return taken;
}

void GpuStopwatch::start() {
  if (!next_.begun) {
    next_ = {event(), event()};
  }
  stream_.record(*next_.begun);
}

void GpuStopwatch::stop() {
  stream_.record(*next_.ended);
  stretches_.push_back(std::move(next_));
}

void GpuStopwatch::collect() {
  while (!stretches_.empty() && stretches_.front().ended->reached()) {
    Stretch& first = stretches_.front();
    seconds_ += first.ended->seconds_since(*first.begun);
    spare_.push_back(std::move(first.begun));
    spare_.push_back(std::move(first.ended));
    stretches_.pop_front();
  }
}

std::size_t GpuStopwatch::open() {
  collect();
  return stretches_.size();
}

double GpuStopwatch::take_seconds() {
  collect();
  return std::exchange(seconds_, 0.0);
}

}  // namespace paceline
