// SPDX-License-Identifier: Apache-2.0
#include "common/core/device.h"

#include <algorithm>

#include "common/base/buffer.h"
#include "common/core/kernels.h"

namespace paceline {

namespace {

class HostArena final : public DeviceArena {
 public:
  explicit HostArena(std::size_t floats) : memory_(floats * sizeof(float)) {}
  [[nodiscard]] std::span<float> values() noexcept override { return memory_.as<float>(); }

 private:
  Buffer memory_;
};

}  // namespace

std::unique_ptr<DeviceArena> Device::allocate(std::size_t floats, std::string_view /*what*/) {
  return std::make_unique<HostArena>(floats);
}

void Device::clear(std::span<float> values) {
  std::ranges::fill(values, 0.0F);
}

void Device::add(std::span<float> to, std::span<const float> from) {
  kernels::for_each(static_cast<std::int64_t>(to.size()),
                    kernels::AddScaled{to.data(), from.data(), to.data(), 1.0F});
}

void Device::multiply(std::span<float> values, float factor) {
  kernels::for_each(static_cast<std::int64_t>(values.size()),
                    kernels::Multiply{values.data(), factor});
}

void Device::download(std::span<const float> values, std::span<float> host) {
  std::ranges::copy(values, host.begin());
}

void Device::upload(std::span<const float> host, std::span<float> values) {
  std::ranges::copy(host, values.begin());
}

}  // namespace paceline
