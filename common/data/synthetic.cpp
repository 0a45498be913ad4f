// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/random.h"
#include "common/data/image_dataset.h"

namespace paceline {

namespace {

/// Share of a pixel that is its class's prototype; the rest is noise.
constexpr float kSignal = 0.4F;

}  // namespace

std::unique_ptr<Dataset> make_synthetic(std::int64_t size, SampleShape shape, int classes,
                                        std::uint64_t seed, Split split) {
  if (size < 1 || shape.height < 1 || shape.width < 1 || shape.channels < 1 || classes < 1 ||
      classes > 256) {
    throw ConfigError(fmt::format(
        "synthetic data: {} samples of {}x{}x{} in {} classes; at least 1 of each, at most 256 "
        "classes",
        size, shape.height, shape.width, shape.channels, classes));
  }
  const auto n = static_cast<std::size_t>(size);
  const auto width = static_cast<std::size_t>(shape.elements());
  const std::uint64_t prototype_key = stream_key(seed, "prototype");
  const std::uint64_t sample_key =
      stream_key(seed, split == Split::train ? "train sample" : "test sample");
  std::vector<std::uint8_t> pixels(n * width);
  std::vector<std::uint8_t> labels(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t key = splitmix64(sample_key + i);
    const std::uint64_t label = key % static_cast<std::uint64_t>(classes);
    labels[i] = static_cast<std::uint8_t>(label);
    for (std::size_t k = 0; k < width; ++k) {
      const float prototype = uniform01(prototype_key, label * width + k);
      const float value = kSignal * prototype + (1.0F - kSignal) * uniform01(key, k);
      pixels[i * width + k] = static_cast<std::uint8_t>(value * 255.0F);
    }
  }
  return std::make_unique<ImageDataset>(std::move(pixels), std::move(labels), shape, classes, 0.5,
                                        0.25);
}

}  // namespace paceline
