// SPDX-License-Identifier: Apache-2.0
// Where a rank computes: the device that the configuration names, and model and backend on it.
#pragma once

#include <memory>
#include <string_view>

#include "common/core/cuda_module.h"
#include "common/core/device.h"
#include "common/core/gpu/gpu.h"
#include "common/core/model.h"
#include "common/data/dataset.h"
#include "common/sync/backend.h"

namespace paceline {

/// Of cuda.norm or cuda.pool.
[[nodiscard]] LayerEngine layer_engine(std::string_view value) noexcept;

/// Of a configuration with device or ps.device = cuda: throws ConfigError where `module` cannot be
/// used, or does not have cuda.device; for validation, before a process starts.
void check_gpus(const Config& config, const CudaModule& module);

/// The CPU, or with device=cuda this rank's GPU of `module`, which outlives it: cuda.device, or
/// the machine's ranks take its GPUs in turn. Collective over the workers.
[[nodiscard]] std::unique_ptr<Device> make_device(const WorkerContext& context,
                                                  const CudaModule& module);

/// The configured model for samples of `data`, computing on `device`, which outlives it.
[[nodiscard]] std::unique_ptr<Model> make_model_on(Device& device, const WorkerContext& context,
                                                   const Dataset& data, StatisticsReducer* reducer);

/// The backend's, staged through the host where it cannot bind a GPU itself.
[[nodiscard]] std::unique_ptr<Synchronizer> make_synchronizer_on(const Device& device,
                                                                 const Backend& backend,
                                                                 const WorkerContext& context);

/// Weights of the device in host memory. Waits for the device.
[[nodiscard]] std::vector<float> weights_on_host(Device& device, std::span<const float> weights);

}  // namespace paceline
