// SPDX-License-Identifier: Apache-2.0
#include "experiments/compute.h"

#include <algorithm>
#include <string_view>

#include "common/comm/machine_identity.h"
#include "common/core/gpu/gpu_model.h"
#include "common/core/gpu/host_staging.h"
#include "common/core/model_options.h"
#include "experiments/backends.h"

namespace paceline {

namespace {

Fusing fusing(std::string_view attention) {
  return attention == "products" ? Fusing::never
         : attention == "fused"  ? Fusing::always
                                 : Fusing::ordered;
}

}  // namespace

LayerEngine layer_engine(std::string_view value) noexcept {
  return value == "own"    ? LayerEngine::own
         : value == "auto" ? LayerEngine::either
                           : LayerEngine::dnn;
}

void check_gpus(const Config& config, const CudaModule& module) {
  require_cuda(module, config.device == "cuda" ? "device" : "ps.device");
  if (config.cuda.device >= 0) {
    check_gpu_index(module, config.cuda.device);
  }
}

std::unique_ptr<Device> make_device(const WorkerContext& context, const CudaModule& module) {
  if (context.config.device != "cuda") {
    return std::make_unique<Device>();
  }
  const int local = local_rank(context.workers);
  const bool one_for_all = find_backend(context.config.sync).traits.shared_weights;
  const CudaConfig& cuda = context.config.cuda;
  GpuOptions options;
  options.index = choose_gpu(module, cuda.device, one_for_all ? 0 : local);
  options.tf32 = cuda.tf32;
  options.tune = cuda.tune;
  options.attention = fusing(cuda.attention);
  options.norm = layer_engine(cuda.norm);
  options.pool = layer_engine(cuda.pool);
  options.graphs = cuda.graph;
  options.timeout = 2 * context.config.comm.timeout;  // so that a lost rank is named before
  options.abort = &context.abort;
  return std::make_unique<Gpu>(module, options);
}

std::unique_ptr<Model> make_model_on(Device& device, const WorkerContext& context,
                                     const Dataset& data, StatisticsReducer* reducer) {
  const Config& config = context.config;
  const ModelOptions options = model_options(config, context.rank, reducer);
  if (device.kind() == DeviceKind::cuda) {
    return make_gpu_model(config.model, data.shape(), data.classes(), options, as_gpu(device));
  }
  return make_model(config.model, data.shape(), data.classes(), options);
}

std::unique_ptr<Synchronizer> make_synchronizer_on(const Device& device, const Backend& backend,
                                                   const WorkerContext& context) {
  auto synchronizer = backend.make(context);
  if (device.kind() == DeviceKind::cuda && !backend.takes_gpu(context.config)) {
    return make_host_staged(std::move(synchronizer));
  }
  return synchronizer;
}

std::vector<float> weights_on_host(Device& device, std::span<const float> weights) {
  std::vector<float> host(weights.size());
  device.download(weights, host);
  return host;
}

}  // namespace paceline
