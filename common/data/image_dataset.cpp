// SPDX-License-Identifier: Apache-2.0
#include "common/data/image_dataset.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace paceline {

ImageDataset::ImageDataset(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
                           SampleShape shape, int classes, double mean, double deviation)
    : pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      shape_(shape),
      classes_(classes),
      value_of_() {
  for (std::size_t x = 0; x < value_of_.size(); ++x) {
    value_of_[x] = static_cast<float>((static_cast<double>(x) / 255.0 - mean) / deviation);
  }
}

void ImageDataset::gather(std::span<const std::uint32_t> indices, std::span<float> inputs,
                          std::span<std::int32_t> labels) const {
  const auto width = static_cast<std::size_t>(shape_.elements());
  if (inputs.size() != indices.size() * width || labels.size() != indices.size()) {
    throw Error(fmt::format("data set: {} indices gathered into {} inputs and {} labels",
                            indices.size(), inputs.size(), labels.size()));
  }
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t index = indices[i];
    if (index >= labels_.size()) {
      throw Error(fmt::format("data set: index {} of {} samples", index, labels_.size()));
    }
    labels[i] = labels_[index];
    const std::uint8_t* from = pixels_.data() + index * width;
    float* to = inputs.data() + i * width;
    for (std::size_t k = 0; k < width; ++k) {
      to[k] = value_of_[from[k]];
    }
  }
}

}  // namespace paceline
