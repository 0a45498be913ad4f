// SPDX-License-Identifier: Apache-2.0
// A small GPT.
#pragma once

#include <memory>

#include "common/core/model.h"
#include "common/core/transformer_setup.h"

namespace paceline {

/// Throws ConfigError where heads do not divide the width or one of options.gpt is below 1.
[[nodiscard]] TransformerShape gpt_shape(std::int64_t positions, int tokens,
                                         const ModelOptions& options);

/// Predicts the next of `tokens` tokens at every one of `positions` positions: embedding,
/// options.gpt.layers blocks, a last norm, and a head with the embedding's weights. Initial values:
/// embeddings with deviation 0.02, linear maps as PyTorch's nn.Linear, norms 1 and 0. With width C,
/// L blocks and T positions: tokens·C + T·C + L·(12·C² + 13·C) + 2·C parameters. On the
/// CPU; throws ConfigError as gpt_shape() does, and for precision below fp32.
[[nodiscard]] std::unique_ptr<Model> make_gpt(std::int64_t positions, int tokens,
                                              const ModelOptions& options);

}  // namespace paceline
