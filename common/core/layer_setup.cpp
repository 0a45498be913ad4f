// SPDX-License-Identifier: Apache-2.0
#include "common/core/layer_setup.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace paceline {

SampleShape convolved(const SampleShape& input, const ConvShape& conv) noexcept {
  const auto extent = [&](std::int64_t of) {
    return (of + 2 * conv.padding - conv.kernel) / conv.stride + 1;
  };
  return {extent(input.height), extent(input.width), conv.outputs};
}

void check_flat(std::string_view name, const SampleShape& input) {
  if (needs_flatten(input)) {
    throw Error(fmt::format("layer {}: a {}x{}x{} input has to be flattened first", name,
                            input.height, input.width, input.channels));
  }
}

void check_convolution(std::string_view name, const SampleShape& input, const ConvShape& conv) {
  const std::int64_t least = conv.kernel - 2 * conv.padding;
  if (input.height < least || input.width < least) {
    throw ConfigError(
        fmt::format("layer {}: {}x{} convolution of a {}x{} input, at least {}x{} is needed", name,
                    conv.kernel, conv.kernel, input.height, input.width, least, least));
  }
}

void check_max_pool(std::string_view name, const SampleShape& input) {
  if (input.height < 2 || input.width < 2) {
    throw ConfigError(fmt::format("layer {}: 2x2 pooling of a {}x{} input, at least 2x2 is needed",
                                  name, input.height, input.width));
  }
}

kernels::WindowGeometry checked_window(std::string_view name, const SampleShape& input,
                                       std::int64_t kernel, std::int64_t stride,
                                       std::int64_t padding) {
  constexpr std::int64_t kMostKernel = 15;
  const std::int64_t least = kernel - 2 * padding;
  if (kernel < 1 || kernel > kMostKernel || stride < 1 || padding < 0 || 2 * padding > kernel ||
      input.height < least || input.width < least) {
    throw ConfigError(fmt::format(
        "layer {}: {}x{} maximum of a {}x{} input with stride {} and padding {}; the kernel must "
        "be 1 to {} and fit, the padding at most half of it",
        name, kernel, kernel, input.height, input.width, stride, padding, kMostKernel));
  }
  const auto extent = [&](std::int64_t of) { return (of + 2 * padding - kernel) / stride + 1; };
  return {input.height,        input.width, input.channels, extent(input.height),
          extent(input.width), kernel,      stride,         padding};
}

std::int64_t checked_groups(std::string_view name, std::int64_t channels, const NormSetup& setup) {
  const std::int64_t groups = setup.kind == NormKind::group ? setup.groups : 1;
  if (groups < 1 || channels % groups != 0) {
    throw ConfigError(fmt::format("norm.groups = {} does not divide the {} channels of layer {}",
                                  groups, channels, name));
  }
  return groups;
}

}  // namespace paceline
