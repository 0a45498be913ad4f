// SPDX-License-Identifier: Apache-2.0
#include "experiments/memory_model.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/gpt.h"
#include "common/core/gpu/gpu_attention.h"
#include "common/core/gpu/gpu_model.h"
#include "common/core/gpu/planning_module.h"
#include "common/core/model_options.h"
#include "experiments/compute.h"

namespace paceline {

namespace {

/// Whether the GPU of `real` would fuse it, as a run with cuda.attention=auto asks.
PlannedAttention ask_about_attention(const Config& config, const TransformerShape& shape,
                                     std::int64_t samples, const CudaModule& real) {
  if (!real.usable()) {
    return {false,
            "whether cuda.attention=auto fuses it is known on the GPU alone; "
            "cuda.attention=fused plans it so"};
  }
  try {
    GpuOptions options;
    options.index = choose_gpu(real, config.cuda.device, 0);
    options.tf32 = config.cuda.tf32;
    Gpu gpu(real, options);
    const auto context =
        std::make_shared<GpuContext>(gpu, parse_precision(config.precision.compute));
    const std::string obstacle = GpuAttention(context, shape).obstacle(samples, true);
    return {obstacle.empty(), obstacle};
  } catch (const Error& error) {
    return {false, fmt::format("the GPU could not be asked: {}", error.what())};
  }
}

PlannedAttention plan_attention(const Config& config, const TransformerShape& shape,
                                std::int64_t samples, const CudaModule& real) {
  if (config.precision.compute == "fp32") {
    return {false, "attention is fused in bf16 and fp16"};
  }
  if (config.cuda.attention == "products") {
    return {false, ""};
  }
  if (config.cuda.attention == "fused") {
    return {true, "a run falls back to products where cuDNN cannot fuse it"};
  }
  return ask_about_attention(config, shape, samples, real);
}

}  // namespace

PlannedModel::PlannedModel(const Config& config, SampleShape input, int classes,
                           std::int64_t samples, const CudaModule& real) {
  if (config.device != "cuda") {
    model_ = make_model(config.model, input, classes, structure_options(config));
    return;
  }
  const ModelOptions options = model_options(config, 0, nullptr);
  element_bytes_ = stored_bytes(options.precision);
  if (config.model == "gpt") {
    attention_ =
        plan_attention(config, gpt_shape(input.elements(), classes, options), samples, real);
  }
  GpuOptions planning;
  planning.norm = layer_engine(config.cuda.norm);
  planning.pool = layer_engine(config.cuda.pool);
  planning.attention = attention_ && attention_->fused ? Fusing::always : Fusing::never;
  gpu_ = std::make_unique<Gpu>(planning_module(), planning);
  model_ = make_gpu_model(config.model, input, classes, options, *gpu_);
}

ActivationPlan PlannedModel::activations(std::int64_t samples) const {
  return model_->plan_activations({samples, element_bytes_});
}

}  // namespace paceline
