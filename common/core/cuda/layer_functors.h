// SPDX-License-Identifier: Apache-2.0
// The functors that the GPU's layers run, in all three formats of activations; functors.h takes
// them into the lists.
#pragma once

#include <tuple>

#include "common/core/kernels_column_gradients.h"
#include "common/core/kernels_columns.h"
#include "common/core/kernels_norm.h"
#include "common/core/kernels_shared_norm.h"
#include "common/core/kernels_stored.h"
#include "common/core/kernels_windows.h"
#include "common/core/stored.h"

namespace paceline::cuda {

/// By a thread per element, per packs of them, or per unit of a functor that has units.
template <typename T>
using EachOfFormat =
    std::tuple<kernels::BasicAddScaled<T>, kernels::Transposed<T, T>, kernels::BiasActivation<T>,
               kernels::ChannelAverage<T>, kernels::ChannelAverageGradient<T>,
               kernels::MaskedByRelu<T>, kernels::ColumnMoments<T>, kernels::ColumnNormalise<T>,
               kernels::ColumnGradientSums<T>, kernels::ColumnInputGradient<T>,
               kernels::ColumnBiasSums<T>, kernels::WindowMax<T>, kernels::WindowMaxGather<T>,
               kernels::MaxPoolSpread<T>>;

using LayerEachFunctors = decltype(std::tuple_cat(
    EachOfFormat<float>{}, EachOfFormat<Half>{}, EachOfFormat<Bfloat>{},
    std::tuple<kernels::Transposed<float, Half>, kernels::Transposed<float, Bfloat>,
               kernels::Transposed<Half, float>, kernels::Transposed<Bfloat, float>,
               kernels::BatchStatistics, kernels::RunningStatistics, kernels::KeptStatistics,
               kernels::MomentSums, kernels::SharedStatistics, kernels::SharedCount,
               kernels::SharedGradientMeans, kernels::GroupMoments, kernels::GroupGradientMeans,
               kernels::NormParameterGradient>{}));

/// By a warp per row.
using LayerRowFunctors =
    std::tuple<kernels::BasicSoftmaxCrossEntropy<float>, kernels::BasicSoftmaxCrossEntropy<Half>,
               kernels::BasicSoftmaxCrossEntropy<Bfloat>, kernels::MergedMoments,
               kernels::MergedSums, kernels::MergedBias, kernels::LossParts, kernels::LossTotal>;

}  // namespace paceline::cuda
