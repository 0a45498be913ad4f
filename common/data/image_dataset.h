// SPDX-License-Identifier: Apache-2.0
// Images of bytes, normalised (and augmented) while a batch is gathered.
#pragma once

#include <vector>

#include "common/data/dataset.h"

namespace paceline {

/// What a data set of images is apart from its pixels.
struct ImageFormat {
  SampleShape shape;
  int classes = 1;
  /// A byte x of channel c becomes (x/255 − mean[c])/deviation[c]; one entry stands for all
  /// channels.
  std::vector<double> mean;
  std::vector<double> deviation;
  Augmentation augmentation{};
};

/// The derived class says where the pixels come from.
class ImageDataset : public Dataset {
 public:
  [[nodiscard]] SampleShape shape() const noexcept override { return format_.shape; }
  [[nodiscard]] int classes() const noexcept override { return format_.classes; }
  /// Throws Error for an index past the end or spans of the wrong length.
  void gather(std::span<const std::uint32_t> indices, std::span<float> inputs,
              std::span<std::int32_t> labels) const override;
  void gather_training(std::span<const std::uint32_t> indices, std::int64_t epoch,
                       std::span<float> inputs, std::span<std::int32_t> labels) const override;

 protected:
  explicit ImageDataset(ImageFormat format);

  [[nodiscard]] virtual std::int32_t label(std::size_t index) const = 0;
  /// Pixels [height, width, channels] of an image below size(); may be made in `scratch`, and are
  /// valid until that changes.
  [[nodiscard]] virtual const std::uint8_t* pixels(std::size_t index,
                                                   std::vector<std::uint8_t>& scratch) const = 0;

 private:
  void check(std::span<const std::uint32_t> indices, std::size_t inputs, std::size_t labels) const;
  void normalise(const std::uint8_t* from, float* to) const;
  void augment(const std::uint8_t* from, std::uint64_t key, float* to) const;
  [[nodiscard]] float value(std::size_t channel, std::uint8_t byte) const {
    return values_[channel * table_step_ + byte];
  }

  ImageFormat format_;
  std::size_t tables_;         // 1 or one per channel
  std::size_t table_step_;     // from one channel's to the next one's
  std::vector<float> values_;  // of every byte, per table
};

/// `pixels`: [size, height, width, channels]; `labels`: [size], each below `format.classes`.
[[nodiscard]] std::unique_ptr<Dataset> make_image_dataset(std::vector<std::uint8_t> pixels,
                                                          std::vector<std::uint8_t> labels,
                                                          ImageFormat format);

}  // namespace paceline
