// SPDX-License-Identifier: Apache-2.0
// Where a batch's samples are gathered.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/core/model.h"
#include "common/data/dataset.h"

namespace paceline {

/// Inputs and labels of one batch, reused from step to step.
class BatchMemory {
 public:
  BatchMemory(const Dataset& dataset, std::int64_t capacity)
      : dataset_(dataset),
        width_(dataset.sparse() != nullptr ? 0
                                           : static_cast<std::size_t>(dataset.shape().elements())),
        inputs_(static_cast<std::size_t>(capacity) * width_),
        labels_each_(static_cast<std::size_t>(dataset.labels_per_sample())),
        labels_(static_cast<std::size_t>(capacity) * labels_each_) {}

  /// A sparse data set's batch refers to `indices`.
  Batch gather(std::span<const std::uint32_t> indices) {
    const Places to = places(indices.size());
    dataset_.gather(indices, to.inputs, to.labels);
    return batch(to, indices);
  }

  /// For training in pass `epoch` over the data set, augmented where it says so.
  Batch gather_training(std::span<const std::uint32_t> indices, std::int64_t epoch) {
    const Places to = places(indices.size());
    dataset_.gather_training(indices, epoch, to.inputs, to.labels);
    return batch(to, indices);
  }

 private:
  struct Places {
    std::span<float> inputs;
    std::span<std::int32_t> labels;
  };
  Places places(std::size_t n) {
    return {std::span(inputs_).first(n * width_), std::span(labels_).first(n * labels_each_)};
  }
  [[nodiscard]] Batch batch(const Places& places, std::span<const std::uint32_t> indices) const {
    const auto samples = static_cast<std::int64_t>(indices.size());
    return {places.inputs, places.labels, samples, 1.0F, {dataset_.sparse(), indices}};
  }

  const Dataset& dataset_;
  std::size_t width_;  // floats of a sample
  std::vector<float> inputs_;
  std::size_t labels_each_;
  std::vector<std::int32_t> labels_;
};

}  // namespace paceline
