// SPDX-License-Identifier: Apache-2.0
// The layers of a decoder-only transformer with pre-norm blocks, learned positions and a head tied
// to the embedding (Radford et al. 2019, GPT-2, without dropout). Activations are
// [samples, positions, 1, width], fp32.
#pragma once

#include <memory>
#include <string>

#include "common/core/sequential.h"
#include "common/core/transformer_setup.h"

namespace paceline {

class TransformerScratch;
class TiedEmbedding;

/// Shared by the layers of one model; must outlive them.
[[nodiscard]] std::shared_ptr<TransformerScratch> make_transformer_scratch();
[[nodiscard]] std::shared_ptr<SharedScratch> as_shared_scratch(
    std::shared_ptr<TransformerScratch> scratch);
[[nodiscard]] std::shared_ptr<TiedEmbedding> make_tied_embedding();

/// y[p] = token[x[p]] + position[p], for tokens x as floats. Its weights are the head's too, so
/// their gradient is final after this layer's backward, the last of the step.
[[nodiscard]] std::unique_ptr<Layer> make_token_embedding(std::shared_ptr<TiedEmbedding> tied,
                                                          const TransformerShape& shape);

/// h = x + Attention(Norm(x)), y = h + W2·GELU(W1·Norm(h)), W1 four times as wide; attention over
/// the positions up to the own one (Vaswani et al. 2017).
[[nodiscard]] std::unique_ptr<Layer> make_transformer_block(
    std::shared_ptr<TransformerScratch> scratch, std::string name, const TransformerShape& shape);

/// LayerNorm of each position.
[[nodiscard]] std::unique_ptr<Layer> make_row_norm(std::string name, const TransformerShape& shape);

/// logits[p] = token·x[p], [positions, 1, vocabulary]; no parameters of its own. Its forward comes
/// after the embedding's, its backward before it.
[[nodiscard]] std::unique_ptr<Layer> make_tied_head(std::shared_ptr<TiedEmbedding> tied,
                                                    const TransformerShape& shape);

}  // namespace paceline
