// SPDX-License-Identifier: Apache-2.0
// What activations take, said before any of them is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace paceline {

/// What a plan is asked for.
struct PlannedBatch {
  std::int64_t samples = 0;
  /// Of an activation: 4 on the CPU whatever precision.compute says, 2 on a GPU below fp32.
  std::size_t element_bytes = sizeof(float);
  [[nodiscard]] std::size_t activations(std::int64_t elements_per_sample) const noexcept {
    return static_cast<std::size_t>(samples * elements_per_sample) * element_bytes;
  }
};

/// Bytes of the areas that the layers of a model share: staged weights, input and output gradient
/// as operands, what lives within a backward call. Each grows to what the largest layer wants.
using ScratchAreas = std::array<std::size_t, 4>;

inline void grow_areas(ScratchAreas& areas, const ScratchAreas& wanted) noexcept {
  for (std::size_t i = 0; i < areas.size(); ++i) {
    areas[i] = std::max(areas[i], wanted[i]);
  }
}

/// Bytes, as Model::activation_bytes() counts them after a training batch.
struct ActivationPlan {
  std::size_t outputs = 0;    ///< of all layers, kept from forward to backward
  std::size_t gradients = 0;  ///< of activations: two halves
  std::size_t layers = 0;     ///< what layers hold themselves
  std::size_t copies = 0;     ///< weights and inputs rounded to precision.compute
  std::size_t scratch = 0;    ///< shared, but for what the maths library asks for
  [[nodiscard]] std::size_t total() const noexcept {
    return outputs + gradients + layers + copies + scratch;
  }
};

}  // namespace paceline
