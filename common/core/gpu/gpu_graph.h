// SPDX-License-Identifier: Apache-2.0
// Work of a GPU's compute stream that is recorded once and launched as a whole (CUDA graphs).
#pragma once

#include <utility>

#include "common/core/gpu/gpu.h"

namespace paceline {

/// Outlived by the Gpu; what was launched goes on when it ends. Addresses and numbers are those of
/// the recording.
class GpuGraph {
 public:
  ~GpuGraph();
  GpuGraph(GpuGraph&& other) noexcept
      : gpu_(other.gpu_), graph_(std::exchange(other.graph_, nullptr)) {}
  GpuGraph& operator=(GpuGraph&&) = delete;
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  /// Queues it on the Gpu's stream. Throws Error.
  void launch() const;

 private:
  friend class GpuCapture;
  GpuGraph(Gpu& gpu, void* graph) : gpu_(&gpu), graph_(graph) {}

  Gpu* gpu_;
  void* graph_;
};

/// From here to end() what this thread queues on the Gpu's stream is recorded and not run. Throws
/// Error.
class GpuCapture {
 public:
  explicit GpuCapture(Gpu& gpu);
  /// Without end(): what was recorded is lost.
  ~GpuCapture();
  GpuCapture(const GpuCapture&) = delete;
  GpuCapture& operator=(const GpuCapture&) = delete;

  [[nodiscard]] GpuGraph end();

 private:
  Gpu& gpu_;
  bool open_ = true;
};

}  // namespace paceline
