// SPDX-License-Identifier: Apache-2.0
// The functors that the GPU's layers run, in all three formats of activations; functors.h takes
// them into the lists.
#pragma once

#include <tuple>

#include "common/core/kernels_column_gradients.h"
#include "common/core/kernels_columns.h"
#include "common/core/kernels_norm.h"
#include "common/core/kernels_pool.h"
#include "common/core/kernels_shared_norm.h"
#include "common/core/kernels_stored.h"
#include "common/core/stored.h"

namespace paceline::cuda {

/// By a thread per element, or per unit of a functor of columns.
template <typename T>
using EachOfFormat =
    std::tuple<kernels::BasicAddScaled<T>, kernels::Transposed<T, T>, kernels::BiasActivation<T>,
               kernels::ChannelAverage<T>, kernels::ChannelAverageGradient<T>,
               kernels::MaskedByRelu<T>, kernels::ColumnMoments<T>, kernels::ColumnNormalise<T>,
               kernels::ColumnGradientSums<T>, kernels::ColumnInputGradient<T>,
               kernels::ColumnBiasSums<T>>;

using LayerEachFunctors = decltype(std::tuple_cat(
    EachOfFormat<float>{}, EachOfFormat<Half>{}, EachOfFormat<Bfloat>{},
    std::tuple<kernels::Transposed<float, Half>, kernels::Transposed<float, Bfloat>,
               kernels::Transposed<Half, float>, kernels::Transposed<Bfloat, float>,
               kernels::BatchStatistics, kernels::RunningStatistics, kernels::KeptStatistics,
               kernels::MomentSums, kernels::SharedStatistics, kernels::SharedCount,
               kernels::SharedGradientMeans, kernels::GroupMoments, kernels::GroupGradientMeans,
               kernels::NormParameterGradient>{}));

/// By a warp per row.
template <typename T>
using RowsOfFormat = std::tuple<kernels::BasicMaxPoolForward<T>, kernels::BasicMaxPoolBackward<T>,
                                kernels::BasicWindowMaxForward<T>, kernels::WindowMaxGather<T>,
                                kernels::BasicSoftmaxCrossEntropy<T>>;

using LayerRowFunctors = decltype(std::tuple_cat(
    RowsOfFormat<float>{}, RowsOfFormat<Half>{}, RowsOfFormat<Bfloat>{},
    std::tuple<kernels::MergedMoments, kernels::MergedSums, kernels::MergedBias, kernels::LossParts,
               kernels::LossTotal>{}));

}  // namespace paceline::cuda
