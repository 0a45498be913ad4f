// SPDX-License-Identifier: Apache-2.0
// The layers of cpu/transformer.h on a GPU, in any format; see gpu_layers.h for the conventions.
#pragma once

#include <memory>
#include <string>

#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_sequential.h"
#include "common/core/transformer_setup.h"

namespace paceline {

class GpuTiedEmbedding;

[[nodiscard]] std::shared_ptr<GpuTiedEmbedding> make_gpu_tied_embedding();

/// Tokens come as numbers in fp32 (GpuContext::take_inputs_in_fp32()).
[[nodiscard]] std::unique_ptr<Layer> make_gpu_token_embedding(
    GpuContextPtr context, std::shared_ptr<GpuTiedEmbedding> tied, const TransformerShape& shape);
/// Attention as GpuAttention computes it: only where that is not fused are there tensors of
/// [samples, heads, positions, positions].
[[nodiscard]] std::unique_ptr<Layer> make_gpu_transformer_block(GpuContextPtr context,
                                                                std::string name,
                                                                const TransformerShape& shape);
[[nodiscard]] std::unique_ptr<Layer> make_gpu_row_norm(GpuContextPtr context, std::string name,
                                                       const TransformerShape& shape);
[[nodiscard]] std::unique_ptr<Layer> make_gpu_tied_head(GpuContextPtr context,
                                                        std::shared_ptr<GpuTiedEmbedding> tied,
                                                        const TransformerShape& shape);

/// make_gpt (gpt.h) on the context's Gpu; in bf16 and fp16 too.
/// Throws ConfigError as gpt_shape() does.
[[nodiscard]] std::unique_ptr<Model> make_gpu_gpt(GpuContextPtr context, std::int64_t positions,
                                                  int tokens, const ModelOptions& options);

}  // namespace paceline
