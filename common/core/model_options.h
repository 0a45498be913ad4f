// SPDX-License-Identifier: Apache-2.0
// What a model is built with besides its name and shape.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/config/config.h"
#include "common/core/precision.h"

namespace paceline {

class StatisticsReducer;

inline constexpr std::int64_t kMostEvaluationSamples = 64;

/// Samples that evaluation computes at a time where training computes `train_batch`: never more, so
/// that a model's memory is that of a training batch.
[[nodiscard]] constexpr std::int64_t evaluation_samples(std::int64_t train_batch) noexcept {
  return std::min(train_batch, kMostEvaluationSamples);
}

struct ModelOptions {
  int threads = 1;       ///< OpenMP threads of the calling worker's primitives
  bool winograd = true;  ///< where it fits, with one thread: see cpu/winograd.h
  NormConfig norm{};
  Precision precision = Precision::fp32;
  GptConfig gpt{};
  /// At least 1; changes an evaluation's result by rounding alone.
  std::int64_t evaluation_samples = kMostEvaluationSamples;
  double drop_path = 0.0;  ///< resmlp: chance that a block is left out of a step
  std::uint64_t seed = 1;  ///< with rank: decides which blocks
  int rank = 0;
  /// Adds SyncBatchNorm's statistics over the ranks; outlives the model. Null: this rank's alone.
  StatisticsReducer* reducer = nullptr;
};

[[nodiscard]] ModelOptions model_options(const Config& config, int rank,
                                         StatisticsReducer* reducer);

/// Those of a model on the CPU that stands for the configured one, to ask for its layers, shapes
/// and tensors: it need not be able to compute in a GPU's 16 bits.
[[nodiscard]] ModelOptions structure_options(const Config& config);

/// Throws ConfigError for what the configured model cannot do: a norm in a model without places for
/// one, groups that do not divide a layer's channels, train.drop_path without blocks to leave out,
/// fp16 without loss scaling, an initial loss scale that is no power of two. For validation, before
/// a process starts.
void check_model_options(const Config& config);

}  // namespace paceline
