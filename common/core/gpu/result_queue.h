// SPDX-License-Identifier: Apache-2.0
// Results of batches on their way from a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "common/base/buffer.h"
#include "common/core/gpu/gpu_context.h"
#include "common/core/kernels_stored.h"
#include "common/core/model.h"

namespace paceline {

/// Sums losses on the GPU and copies the sums into page-locked memory, without the host waiting.
class ResultQueue {
 public:
  explicit ResultQueue(std::shared_ptr<GpuContext> context);
  ~ResultQueue();
  ResultQueue(const ResultQueue&) = delete;
  ResultQueue& operator=(const ResultQueue&) = delete;

  /// Throws Error when Model::kOpenResults are waiting to be taken.
  void check_room() const;
  /// Queues the sums over `places` losses and marks of right answers in the GPU's memory, times
  /// `share`, where there is room. `step` is for messages, kNoStep: none.
  static constexpr std::int64_t kNoStep = -1;
  void put(const float* loss, const std::uint8_t* correct, std::int64_t places, double share,
           std::int64_t step);
  /// The oldest; waits for it within the Gpu's limits. Throws Error when there is none, and as
  /// GpuWaits::until does.
  BatchResult take();
  [[nodiscard]] std::size_t open() const noexcept { return put_ - taken_; }
  [[nodiscard]] std::size_t device_bytes() const noexcept { return sums_.size(); }

 private:
  std::shared_ptr<GpuContext> context_;
  Buffer host_;
  std::unique_ptr<PinnedRange> pinned_;
  GpuMemory sums_;  // of the parts of one batch, then a total for each slot
  std::array<std::unique_ptr<GpuEvent>, Model::kOpenResults> copied_;
  std::array<std::int64_t, Model::kOpenResults> steps_{};  // by slot
  std::size_t put_ = 0;
  std::size_t taken_ = 0;
};

}  // namespace paceline
