// SPDX-License-Identifier: Apache-2.0
// Logistic regression on sparse rows.
#pragma once

#include <memory>

#include "common/core/model.h"

namespace paceline {

/// Two classes: p(1|x) = 1/(1 + exp(−(w·x + b))), one weight for each of `features` and a bias, all
/// zero at first; loss −log p(label|x). Takes batches with sparse rows alone. Weights are read as
/// relaxed atomics, so that other threads may write them (Hogwild!). Throws ConfigError for a
/// number of features below 1 or over kMostFeatures, other than two classes, and precision below
/// fp32.
[[nodiscard]] std::unique_ptr<Model> make_logistic(std::int64_t features, int classes,
                                                   const ModelOptions& options);

inline constexpr std::int64_t kMostFeatures = std::int64_t{1} << 28;

}  // namespace paceline
