// SPDX-License-Identifier: Apache-2.0
// Images held as bytes, normalised while a batch is gathered.
#pragma once

#include <array>
#include <vector>

#include "common/data/dataset.h"

namespace paceline {

class ImageDataset final : public Dataset {
 public:
  /// `pixels`: [size, height, width, channels]; `labels`: [size], each below `classes`. A byte x
  /// becomes (x/255 − mean)/deviation.
  ImageDataset(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
               SampleShape shape, int classes, double mean, double deviation);

  [[nodiscard]] std::int64_t size() const noexcept override {
    return static_cast<std::int64_t>(labels_.size());
  }
  [[nodiscard]] SampleShape shape() const noexcept override { return shape_; }
  [[nodiscard]] int classes() const noexcept override { return classes_; }
  /// Throws Error for an index past the end or spans of the wrong length.
  void gather(std::span<const std::uint32_t> indices, std::span<float> inputs,
              std::span<std::int32_t> labels) const override;

 private:
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
  SampleShape shape_;
  int classes_;
  std::array<float, 256> value_of_;
};

}  // namespace paceline
