// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_graph.h"

namespace paceline {

GpuGraph::~GpuGraph() {
  if (graph_ != nullptr) {
    static_cast<void>(gpu_->api().destroy_graph(graph_));
  }
}

void GpuGraph::launch() const {
  gpu_->check(gpu_->api().launch_graph(graph_, gpu_->stream().native()), "launching a CUDA graph");
}

GpuCapture::GpuCapture(Gpu& gpu) : gpu_(gpu) {
  gpu.check(gpu.api().begin_capture(gpu.stream().native()), "beginning a CUDA graph");
}

GpuCapture::~GpuCapture() {
  if (open_) {
    void* graph = nullptr;
    if (gpu_.api().end_capture(gpu_.stream().native(), &graph) == cuda::kSuccess) {
      static_cast<void>(gpu_.api().destroy_graph(graph));
    }
  }
}

GpuGraph GpuCapture::end() {
  open_ = false;
  void* graph = nullptr;
  gpu_.check(gpu_.api().end_capture(gpu_.stream().native(), &graph), "making a CUDA graph");
  return {gpu_, graph};
}

}  // namespace paceline
