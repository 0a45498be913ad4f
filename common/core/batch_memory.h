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
        inputs_(static_cast<std::size_t>(capacity * dataset.shape().elements())),
        labels_(static_cast<std::size_t>(capacity)) {}

  Batch gather(std::span<const std::uint32_t> indices) {
    const std::size_t n = indices.size();
    const std::span inputs =
        std::span(inputs_).first(n * static_cast<std::size_t>(dataset_.shape().elements()));
    const std::span labels = std::span(labels_).first(n);
    dataset_.gather(indices, inputs, labels);
    return {inputs, labels, static_cast<std::int64_t>(n), 1.0F};
  }

 private:
  const Dataset& dataset_;
  std::vector<float> inputs_;
  std::vector<std::int32_t> labels_;
};

}  // namespace paceline
