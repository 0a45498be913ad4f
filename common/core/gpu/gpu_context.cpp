// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_context.h"

namespace paceline {

void GpuContext::grow(GpuMemory& memory, std::size_t bytes, std::string_view what) const {
  if (bytes <= memory.size()) {
    return;
  }
  ++growths_;
  memory = GpuMemory();  // first, so that there is never room for both
  memory = GpuMemory(gpu_, bytes, what);
}

std::size_t GpuContext::bytes() const noexcept {
  std::size_t sum = unplanned_bytes();
  for (const GpuMemory& area : scratch_) {
    sum += area.size();
  }
  return sum;
}

std::size_t GpuContext::unplanned_bytes() const noexcept {
  return gpu_.math_bytes();
}

}  // namespace paceline
