// SPDX-License-Identifier: Apache-2.0
// The functors that the CUDA module has kernels for. Their place in these lists is how the program
// names them, so program and module are built from one copy of this file (abi.h's version tells).
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/core/cuda/layer_functors.h"
#include "common/core/cuda/transformer_functors.h"
#include "common/core/kernels.h"
#include "common/core/kernels_sync.h"
#include "common/core/kernels_tensors.h"

namespace paceline::cuda {

template <typename... Lists>
using Joined = decltype(std::tuple_cat(std::declval<Lists>()...));

/// Run by kernels::for_each: a thread per element, or per packs of them (kernels_each.h).
using EachFunctors = Joined<
    LayerEachFunctors, TransformerEachFunctors,
    std::tuple<kernels::Multiply, kernels::ClipByNorm, kernels::TrustRatios, kernels::ToWire<Half>,
               kernels::ToWire<Bfloat>, kernels::FromWire<Half>, kernels::FromWire<Bfloat>>>;

/// Run by kernels::for_rows: a warp per row.
using RowFunctors =
    Joined<LayerRowFunctors, TransformerRowFunctors,
           std::tuple<kernels::BiasGradient, kernels::SquaresOfBlocks, kernels::SumOfBlocks,
                      kernels::SquaresOfPieces, kernels::SquaresOfTensors>>;

/// Place of F in a list; a functor that is not there does not compile.
template <typename F, typename List>
struct PlaceOf;
template <typename F, typename... Rest>
struct PlaceOf<F, std::tuple<F, Rest...>> : std::integral_constant<int, 0> {};
template <typename F, typename First, typename... Rest>
struct PlaceOf<F, std::tuple<First, Rest...>>
    : std::integral_constant<int, 1 + PlaceOf<F, std::tuple<Rest...>>::value> {};

}  // namespace paceline::cuda
