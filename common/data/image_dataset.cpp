// SPDX-License-Identifier: Apache-2.0
#include "common/data/image_dataset.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/random.h"

namespace paceline {

namespace {

constexpr std::size_t kBytes = 256;
constexpr std::int64_t kCropPadding = 4;

/// Pixels of kTables bytes, each with a table of its own.
template <std::size_t kTables>
void normalise_pixels(const std::uint8_t* from, std::size_t pixels, const float* values,
                      float* to) {
  for (std::size_t k = 0; k < pixels * kTables; k += kTables) {
    for (std::size_t c = 0; c < kTables; ++c) {
      to[k + c] = values[c * kBytes + from[k + c]];
    }
  }
}

class StoredImages final : public ImageDataset {
 public:
  StoredImages(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
               ImageFormat format)
      : ImageDataset(std::move(format)), pixels_(std::move(pixels)), labels_(std::move(labels)) {}

  [[nodiscard]] std::int64_t size() const noexcept override {
    return static_cast<std::int64_t>(labels_.size());
  }

 private:
  [[nodiscard]] std::int32_t label(std::size_t index) const override { return labels_[index]; }
  [[nodiscard]] const std::uint8_t* pixels(std::size_t index,
                                           std::vector<std::uint8_t>& /*scratch*/) const override {
    return pixels_.data() + index * static_cast<std::size_t>(shape().elements());
  }

  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
};

}  // namespace

ImageDataset::ImageDataset(ImageFormat format)
    : format_(std::move(format)),
      tables_(format_.mean.size()),
      table_step_(tables_ == 1 ? 0 : kBytes),
      values_(tables_ * kBytes) {
  const auto channels = static_cast<std::size_t>(format_.shape.channels);
  if (format_.deviation.size() != tables_ || (tables_ != 1 && tables_ != channels)) {
    throw Error(fmt::format("data set: {} means and {} deviations for {} channels", tables_,
                            format_.deviation.size(), channels));
  }
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const double x = static_cast<double>(i % kBytes) / 255.0;
    values_[i] = static_cast<float>((x - format_.mean[i / kBytes]) / format_.deviation[i / kBytes]);
  }
}

void ImageDataset::check(std::span<const std::uint32_t> indices, std::size_t inputs,
                         std::size_t labels) const {
  const auto width = static_cast<std::size_t>(format_.shape.elements());
  if (inputs != indices.size() * width || labels != indices.size()) {
    throw Error(fmt::format("data set: {} indices gathered into {} inputs and {} labels",
                            indices.size(), inputs, labels));
  }
  for (const std::uint32_t index : indices) {
    if (static_cast<std::int64_t>(index) >= size()) {
      throw Error(fmt::format("data set: index {} of {} samples", index, size()));
    }
  }
}

void ImageDataset::normalise(const std::uint8_t* from, float* to) const {
  const auto n = static_cast<std::size_t>(format_.shape.elements());
  if (tables_ == 1) {
    normalise_pixels<1>(from, n, values_.data(), to);
  } else if (tables_ == 3) {
    normalise_pixels<3>(from, n / 3, values_.data(), to);
  } else {
    for (std::size_t k = 0; k < n; ++k) {
      to[k] = value(k % tables_, from[k]);
    }
  }
}

/// A window of the image with black all around, shifted by up to kCropPadding each way, and
/// mirrored in half of the cases.
void ImageDataset::augment(const std::uint8_t* from, std::uint64_t key, float* to) const {
  const SampleShape& shape = format_.shape;
  const auto draw = [&](std::uint64_t i, std::uint64_t choices) {
    return static_cast<std::int64_t>((splitmix64(key + i) >> 32) % choices);
  };
  constexpr auto kShifts = static_cast<std::uint64_t>(2 * kCropPadding + 1);
  const std::int64_t down = draw(0, kShifts) - kCropPadding;
  const std::int64_t right = draw(1, kShifts) - kCropPadding;
  const bool mirror = draw(2, 2) == 1;
  for (std::int64_t h = 0; h < shape.height; ++h) {
    for (std::int64_t w = 0; w < shape.width; ++w) {
      const std::int64_t row = h + down;
      const std::int64_t column = (mirror ? shape.width - 1 - w : w) + right;
      const bool inside = row >= 0 && row < shape.height && column >= 0 && column < shape.width;
      const std::uint8_t* pixel =
          inside ? from + (row * shape.width + column) * shape.channels : nullptr;
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        *to++ = value(static_cast<std::size_t>(c), pixel != nullptr ? pixel[c] : std::uint8_t{0});
      }
    }
  }
}

void ImageDataset::gather(std::span<const std::uint32_t> indices, std::span<float> inputs,
                          std::span<std::int32_t> labels) const {
  check(indices, inputs.size(), labels.size());
  const auto width = static_cast<std::size_t>(format_.shape.elements());
  std::vector<std::uint8_t> scratch;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    labels[i] = label(indices[i]);
    normalise(pixels(indices[i], scratch), inputs.data() + i * width);
  }
}

void ImageDataset::gather_training(std::span<const std::uint32_t> indices, std::int64_t epoch,
                                   std::span<float> inputs, std::span<std::int32_t> labels) const {
  if (!format_.augmentation.standard) {
    gather(indices, inputs, labels);
    return;
  }
  check(indices, inputs.size(), labels.size());
  const auto width = static_cast<std::size_t>(format_.shape.elements());
  const std::uint64_t epoch_key = stream_key(stream_key(format_.augmentation.seed, "augment"),
                                             static_cast<std::uint64_t>(epoch));
  std::vector<std::uint8_t> scratch;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    labels[i] = label(indices[i]);
    augment(pixels(indices[i], scratch), stream_key(epoch_key, std::uint64_t{indices[i]}),
            inputs.data() + i * width);
  }
}

std::unique_ptr<Dataset> make_image_dataset(std::vector<std::uint8_t> pixels,
                                            std::vector<std::uint8_t> labels, ImageFormat format) {
  return std::make_unique<StoredImages>(std::move(pixels), std::move(labels), std::move(format));
}

}  // namespace paceline
