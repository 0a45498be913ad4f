// SPDX-License-Identifier: Apache-2.0
// What layers are made with, whatever device computes them.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/core/kernels_pool.h"
#include "common/core/layer.h"
#include "common/core/statistics_reducer.h"

namespace paceline {

enum class Activation : std::uint8_t { none, relu };

/// Who multiplies a ReLU's incoming gradient by [y > 0].
enum class ReluMask : std::uint8_t {
  here,   ///< the layer that has the ReLU
  above,  ///< the layer that follows has already done it (make_max_pool with `after_relu`)
};

/// Whether NHWC and PyTorch's channels-first order of one sample differ.
[[nodiscard]] constexpr bool needs_flatten(const SampleShape& shape) noexcept {
  return shape.channels > 1 && shape.height * shape.width > 1;
}

/// Extents of a convolution: square kernels, the same in both directions.
struct ConvShape {
  std::int64_t outputs = 1;  ///< channels
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;  ///< zeros around the input
  bool bias = true;
};

/// Of a convolution's output.
[[nodiscard]] SampleShape convolved(const SampleShape& input, const ConvShape& conv) noexcept;

/// What makers of layers refuse, of layer `name`: Error for an input that has to be flattened
/// first, ConfigError for one that the kernel does not fit into.
void check_flat(std::string_view name, const SampleShape& input);
void check_convolution(std::string_view name, const SampleShape& input, const ConvShape& conv);
void check_max_pool(std::string_view name, const SampleShape& input);
/// The output of a window's maximum; kernel ≤ 15, so that a place in the window fits a byte.
[[nodiscard]] kernels::WindowGeometry checked_window(std::string_view name,
                                                     const SampleShape& input, std::int64_t kernel,
                                                     std::int64_t stride, std::int64_t padding);

enum class NormKind : std::uint8_t { batch, sync_batch, group, layer };

struct NormSetup {
  NormKind kind = NormKind::batch;
  std::int64_t groups = 1;  ///< of kind group
  double momentum = 0.1;
  Activation activation = Activation::none;
  ReluMask mask = ReluMask::here;
  StatisticsReducer* reducer = nullptr;  ///< sync_batch: outlives the layer; null: one rank
};

inline constexpr double kNormEpsilon = 1e-5;

/// Groups of kind group or layer. Throws ConfigError when they do not divide the channels.
[[nodiscard]] std::int64_t checked_groups(std::string_view name, std::int64_t channels,
                                          const NormSetup& setup);

}  // namespace paceline
