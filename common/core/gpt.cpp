// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpt.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/cpu/transformer.h"

namespace paceline {

TransformerShape gpt_shape(std::int64_t positions, int tokens, const ModelOptions& options) {
  constexpr int kMostTokens = 1 << 24;  // whole numbers that fp32 has
  const GptConfig& gpt = options.gpt;
  if (gpt.layers < 1 || gpt.heads < 1 || gpt.width < 1 || gpt.width % gpt.heads != 0) {
    throw ConfigError(fmt::format(
        "gpt.layers = {}, gpt.heads = {}, gpt.width = {}: each at least 1, and the heads must "
        "divide the width",
        gpt.layers, gpt.heads, gpt.width));
  }
  if (tokens > kMostTokens) {
    throw ConfigError(fmt::format("model = gpt: {} tokens, allowed {}", tokens, kMostTokens));
  }
  return {positions, gpt.width, gpt.heads, tokens};
}

std::unique_ptr<Model> make_gpt(std::int64_t positions, int tokens, const ModelOptions& options) {
  const TransformerShape shape = gpt_shape(positions, tokens, options);
  if (options.precision != Precision::fp32) {
    throw ConfigError("precision.compute with model = gpt on the CPU: allowed fp32");
  }
  const auto tied = make_tied_embedding();
  const auto scratch = make_transformer_scratch();
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(make_token_embedding(tied, shape));
  for (std::int64_t block = 0; block < options.gpt.layers; ++block) {
    layers.push_back(make_transformer_block(scratch, fmt::format("block{}", block), shape));
  }
  layers.push_back(make_row_norm("norm", shape));
  layers.push_back(make_tied_head(tied, shape));
  return std::make_unique<Sequential>("gpt", std::move(layers), as_shared_scratch(scratch),
                                      options);
}

}  // namespace paceline
