// SPDX-License-Identifier: Apache-2.0
#include "common/core/device_pace.h"

#include <algorithm>

namespace paceline {

DevicePace::DevicePace(const Model& model, Nanoseconds emulate)
    : emulate_ns_(emulate.count()), forward_ns_(static_cast<std::size_t>(model.layers())) {
  double flops = 0.0;
  for (int layer = 0; layer < model.layers(); ++layer) {
    flops += model.layer_flops(layer);
  }
  for (int layer = 0; layer < model.layers() && flops > 0.0; ++layer) {
    forward_ns_[static_cast<std::size_t>(layer)] = static_cast<std::int64_t>(
        static_cast<double>(emulate_ns_) * model.layer_flops(layer) / (3.0 * flops));
  }
}

void DevicePace::stalled(std::int64_t blocked, std::int64_t now) noexcept {
  worked_ns_ += now - blocked - mark_ns_;
  mark_ns_ = now;
  constexpr std::int64_t kJustACall = 20'000;
  if (blocked > kJustACall) {
    device_ns_ = std::max(device_ns_, now);
  }
}

void DevicePace::advance(std::int64_t ns) noexcept {
  if (emulate_ns_ > 0) {
    device_ns_ += static_cast<std::int64_t>(static_cast<double>(ns) * stretch_);
    sleep_until_ns(device_ns_);
  } else if (stretch_ > 1.0) {
    stretch_own_time();
  }
}

void DevicePace::stretch_own_time() noexcept {
  const std::int64_t now = now_ns();
  worked_ns_ += now - mark_ns_;
  sleep_until_ns(now +
                 static_cast<std::int64_t>(static_cast<double>(worked_ns_) * (stretch_ - 1.0)));
  mark_ns_ = now_ns();
  worked_ns_ = 0;
}

void DevicePace::finish() noexcept {
  if (emulate_ns_ == 0) {
    return;
  }
  ++steps_;
  if (now_ns() - device_ns_ > emulate_ns_ / 20) {
    ++late_;
  }
}

}  // namespace paceline
