// SPDX-License-Identifier: Apache-2.0
// The functors that a transformer on a GPU runs, in all three formats of activations; functors.h
// takes them into the lists.
#pragma once

#include <tuple>

#include "common/core/kernels_sequence.h"
#include "common/core/kernels_transformer.h"
#include "common/core/stored.h"

namespace paceline::cuda {

/// By a thread per element, per packs of them, or per unit of a functor that has units.
template <typename T>
using TransformerEach =
    std::tuple<kernels::BasicGelu<T>, kernels::BasicGeluGradient<T>, kernels::SplitHeads<T>,
               kernels::JoinHeads<T>, kernels::EmbedTokens<T>, kernels::PositionGradient<T>,
               kernels::RowNormColumnSums<T>>;

using TransformerEachFunctors = decltype(std::tuple_cat(
    TransformerEach<float>{}, TransformerEach<Half>{}, TransformerEach<Bfloat>{}));

/// By a warp per row.
template <typename T>
using TransformerRows =
    std::tuple<kernels::BasicRowNorm<T>, kernels::BasicRowNormGradient<T>,
               kernels::BasicCausalSoftmax<T>, kernels::BasicCausalSoftmaxGradient<T>,
               kernels::TokenGradient<T>>;

using TransformerRowFunctors = decltype(std::tuple_cat(
    TransformerRows<float>{}, TransformerRows<Half>{}, TransformerRows<Bfloat>{}));

}  // namespace paceline::cuda
