// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/gpt.h"
#include "common/core/gpu/gpu_transformer.h"

namespace paceline {

std::unique_ptr<Model> make_gpu_gpt(GpuContextPtr context, std::int64_t positions, int tokens,
                                    const ModelOptions& options) {
  constexpr int kExactTokens = 257;  // 0..256 in eight bits
  const TransformerShape shape = gpt_shape(positions, tokens, options);
  if (context->format() != Precision::fp32 && tokens > kExactTokens) {
    throw ConfigError(fmt::format("precision.compute = {} with model = gpt: {} tokens, allowed {}",
                                  precision_name(context->format()), tokens, kExactTokens));
  }
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
