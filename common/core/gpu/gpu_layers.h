// SPDX-License-Identifier: Apache-2.0
// The layers on a GPU: what cpu/layers.h and cpu/norm.h describe, with activations in the context's
// format. Pointers in passes are addresses of the device; a call queues its work and returns.
// Weights and gradients are fp32; products multiply a copy of the weights in the format that
// forward makes anew. Sums are fp32.
#pragma once

#include <memory>
#include <string>

#include "common/core/gpu/gpu_context.h"
#include "common/core/layer_setup.h"

namespace paceline {

using GpuContextPtr = std::shared_ptr<GpuContext>;

[[nodiscard]] std::unique_ptr<Layer> make_gpu_linear(GpuContextPtr context, std::string name,
                                                     SampleShape input, std::int64_t outputs,
                                                     Activation activation);
[[nodiscard]] std::unique_ptr<Layer> make_gpu_flatten(GpuContextPtr context, std::string name,
                                                      SampleShape input);
[[nodiscard]] std::unique_ptr<Layer> make_gpu_conv2d(GpuContextPtr context, std::string name,
                                                     SampleShape input, const ConvShape& shape,
                                                     Activation activation, ReluMask mask);
/// Where Gpu::norm() asks for it, cuDNN computes batch norms in training (kind batch alone); see
/// computed_by_dnn in gpu_parts.h for what it throws. Running statistics (ForwardPass::buffers) are
/// in the device's memory. sync_batch brings its statistics to the host for the reducer and back,
/// so it waits for the GPU in forward and in backward, unless the reducer sums on the device
/// (StatisticsReducer::on_device, with NCCL); the other kinds never do.
[[nodiscard]] std::unique_ptr<Layer> make_gpu_norm(GpuContextPtr context, std::string name,
                                                   SampleShape input, const NormSetup& setup);
/// Pools: likewise with Gpu::pool(), in evaluation too.
[[nodiscard]] std::unique_ptr<Layer> make_gpu_max_pool(GpuContextPtr context, std::string name,
                                                       SampleShape input, bool after_relu);
[[nodiscard]] std::unique_ptr<Layer> make_gpu_window_max_pool(GpuContextPtr context,
                                                              std::string name, SampleShape input,
                                                              std::int64_t kernel,
                                                              std::int64_t stride,
                                                              std::int64_t padding);
[[nodiscard]] std::unique_ptr<Layer> make_gpu_global_average(GpuContextPtr context,
                                                             std::string name, SampleShape input);

}  // namespace paceline
