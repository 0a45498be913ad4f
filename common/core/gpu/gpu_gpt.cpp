// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/core/gpt.h"
#include "common/core/gpu/gpu_transformer.h"

namespace paceline {

std::unique_ptr<Model> make_gpu_gpt(GpuContextPtr context, std::int64_t positions, int tokens,
                                    const ModelOptions& options) {
  const TransformerShape shape = gpt_shape(positions, tokens, options);
  context->take_inputs_in_fp32();
  const auto tied = make_gpu_tied_embedding();
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(make_gpu_token_embedding(context, tied, shape));
  for (std::int64_t block = 0; block < options.gpt.layers; ++block) {
    layers.push_back(make_gpu_transformer_block(context, fmt::format("block{}", block), shape));
  }
  layers.push_back(make_gpu_row_norm(context, "norm", shape));
  layers.push_back(make_gpu_tied_head(context, tied, shape));
  return std::make_unique<GpuSequential>("gpt", std::move(layers), std::move(context), options);
}

}  // namespace paceline
