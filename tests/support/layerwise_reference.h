// SPDX-License-Identifier: Apache-2.0
// LARS and LAMB on one tensor in double, as the papers write them.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "common/sync/optimizer_spec.h"

namespace paceline::test {

inline double norm_of(std::span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// Update t (from 0) of weights w by the mean gradient g; m and v are the moments, `scaled` is for
/// tensors of two dimensions and more.
inline void reference_layerwise(const OptimizerSpec& spec, int t, double lr, bool scaled,
                                std::span<double> w, std::span<const double> g, std::span<double> m,
                                std::span<double> v) {
  const double decay = scaled ? static_cast<double>(spec.weight_decay) : 0.0;
  if (spec.kind == OptimizerKind::lars) {
    const double ratio =
        scaled ? static_cast<double>(spec.trust) * norm_of(w) / (norm_of(g) + decay * norm_of(w))
               : 1.0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = static_cast<double>(spec.momentum) * m[i] + ratio * (g[i] + decay * w[i]);
      w[i] -= lr * m[i];
    }
    return;
  }
  const double beta1 = static_cast<double>(spec.beta1);
  const double beta2 = static_cast<double>(spec.beta2);
  std::vector<double> u(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    m[i] = beta1 * m[i] + (1.0 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1.0 - beta2) * g[i] * g[i];
    u[i] =
        m[i] / (1.0 - std::pow(beta1, t + 1)) /
            (std::sqrt(v[i] / (1.0 - std::pow(beta2, t + 1))) + static_cast<double>(spec.epsilon)) +
        decay * w[i];
  }
  const double ratio = scaled ? norm_of(w) / norm_of(u) : 1.0;
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * ratio * u[i];
}

}  // namespace paceline::test
