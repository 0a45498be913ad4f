// SPDX-License-Identifier: Apache-2.0
// Batches on their way to a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "common/base/buffer.h"
#include "common/core/gpu/gpu_context.h"

namespace paceline {

/// Copies a batch into page-locked memory, in the context's format of inputs, and from there to the
/// GPU on a stream of its own. There are two of each, so that the host may fill one, and the copy
/// run, while the GPU works on the other.
class BatchUpload {
 public:
  explicit BatchUpload(std::shared_ptr<GpuContext> context);
  ~BatchUpload();
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;

  struct OnDevice {
    const float* inputs;  ///< elements of the context's format of inputs
    const std::int32_t* labels;
  };
  /// What is queued on the Gpu's stream from now on finds the batch there. Waits for the upload
  /// two before this one.
  OnDevice put(const Batch& batch);
  /// What is queued so far was the last to read the batch.
  void release();

  [[nodiscard]] std::size_t device_bytes() const noexcept;
  /// Of the GPU's memory for each of two batches.
  [[nodiscard]] std::size_t planned_bytes(std::size_t inputs, std::size_t labels) const noexcept {
    return label_offset(inputs) + labels * sizeof(std::int32_t);
  }

 private:
  struct Slot {
    explicit Slot(const Gpu& gpu) : uploaded(gpu), released(gpu) {}
    Buffer host;
    std::unique_ptr<PinnedRange> pinned;
    GpuMemory device;
    GpuEvent uploaded;
    GpuEvent released;
  };
  /// Bytes of the inputs up to where the labels begin.
  [[nodiscard]] std::size_t label_offset(std::size_t inputs) const noexcept;
  void reserve(Slot& slot, std::size_t bytes);

  std::shared_ptr<GpuContext> context_;
  GpuStream stream_;
  std::array<std::unique_ptr<Slot>, 2> slots_;
  std::size_t current_ = 0;
};

}  // namespace paceline
