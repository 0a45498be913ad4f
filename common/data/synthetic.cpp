// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>

#include "common/base/error.h"
#include "common/core/random.h"
#include "common/data/image_dataset.h"

namespace paceline {

namespace {

/// Share of a pixel that is its class's prototype; the rest is noise.
constexpr float kSignal = 0.4F;
constexpr int kMostClasses = 65536;
constexpr std::int64_t kMostExtent = 4096;
constexpr std::int64_t kMostPixels = std::int64_t{1} << 24;  // of one image
/// Up to so many bytes the images are made once and kept, beyond them whenever they are gathered.
constexpr std::int64_t kKeptBytes = std::int64_t{64} << 20;

class SyntheticImages final : public ImageDataset {
 public:
  SyntheticImages(std::int64_t size, ImageFormat format, std::uint64_t seed, Split split)
      : ImageDataset(std::move(format)),
        size_(size),
        prototype_key_(stream_key(seed, "prototype")),
        sample_key_(stream_key(seed, split == Split::train ? "train sample" : "test sample")) {
    if (size_ <= kKeptBytes / shape().elements()) {
      kept_.resize(static_cast<std::size_t>(size_) * width());
      for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) {
        paint(i, kept_.data() + i * width());
      }
    }
  }

  [[nodiscard]] std::int64_t size() const noexcept override { return size_; }

 private:
  [[nodiscard]] std::size_t width() const noexcept {
    return static_cast<std::size_t>(shape().elements());
  }
  [[nodiscard]] std::uint64_t key(std::size_t index) const {
    return splitmix64(sample_key_ + index);
  }
  [[nodiscard]] std::int32_t label(std::size_t index) const override {
    return static_cast<std::int32_t>(key(index) % static_cast<std::uint64_t>(classes()));
  }
  [[nodiscard]] const std::uint8_t* pixels(std::size_t index,
                                           std::vector<std::uint8_t>& scratch) const override {
    if (!kept_.empty()) {
      return kept_.data() + index * width();
    }
    scratch.resize(width());
    paint(index, scratch.data());
    return scratch.data();
  }
  void paint(std::size_t index, std::uint8_t* to) const {
    const std::uint64_t noise = key(index);
    const std::uint64_t first = static_cast<std::uint64_t>(label(index)) * width();
    for (std::size_t k = 0; k < width(); ++k) {
      const float prototype = uniform01(prototype_key_, first + k);
      const float value = kSignal * prototype + (1.0F - kSignal) * uniform01(noise, k);
      to[k] = static_cast<std::uint8_t>(value * 255.0F);
    }
  }

  std::int64_t size_;
  std::uint64_t prototype_key_;
  std::uint64_t sample_key_;
  std::vector<std::uint8_t> kept_;
};

}  // namespace

std::unique_ptr<Dataset> make_synthetic(std::int64_t size, SampleShape shape, int classes,
                                        std::uint64_t seed, Split split,
                                        const Augmentation& augmentation) {
  if (size < 1 || shape.height < 1 || shape.width < 1 || shape.channels < 1 || classes < 1 ||
      classes > kMostClasses) {
    throw ConfigError(fmt::format(
        "synthetic data: {} samples of {}x{}x{} in {} classes; at least 1 of each, at most {} "
        "classes",
        size, shape.height, shape.width, shape.channels, classes, kMostClasses));
  }
  return std::make_unique<SyntheticImages>(
      size, ImageFormat{shape, classes, {0.5}, {0.25}, augmentation}, seed, split);
}

SampleShape parse_image_shape(std::string_view text) {
  std::int64_t extents[3] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  for (int i = 0; i < 3 && good; ++i) {
    good = i == 0 || (at != end && *at++ == 'x');
    const auto [next, error] = std::from_chars(at, end, extents[i]);
    good = good && error == std::errc() && extents[i] >= 1 && extents[i] <= kMostExtent;
    at = next;
  }
  const SampleShape shape{extents[0], extents[1], extents[2]};
  if (!good || at != end || shape.elements() > kMostPixels) {
    throw ConfigError(fmt::format(
        "data.shape = \"{}\" must be HEIGHTxWIDTHxCHANNELS, each from 1 to {} and {} values at "
        "most, as in 224x224x3",
        text.substr(0, 80), kMostExtent, kMostPixels));
  }
  return shape;
}

}  // namespace paceline
