// SPDX-License-Identifier: Apache-2.0
// What a GPU's layers need besides norms and products (see kernels.h for what a functor is): sums
// are fp32 in registers, activations of type T are read and written once.
#pragma once

#include <cstdint>

#include "common/core/kernels.h"

namespace paceline::kernels {

/// in [n, rows, columns] -> out [n, columns, rows], element i of the output; changes the format on
/// the way. One row: a plain copy.
template <typename From, typename To>
struct Transposed {
  const From* in;
  To* out;
  std::int64_t rows;
  std::int64_t columns;

  PACELINE_HD void operator()(std::int64_t i) const {
    std::int64_t from = i;
    if (rows > 1) {
      const std::int64_t matrix = rows * columns;
      const std::int64_t within = i % matrix;
      from = i - within + within % rows * columns + within / rows;
    }
    out[i] = static_cast<To>(static_cast<float>(in[from]));
  }
  [[nodiscard]] PACELINE_HD bool by_element() const { return rows <= 1; }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    rows = 1;
    return use(reads(in), writes(out));
  }
};

/// y[i] = act(y[i] + bias[i mod channels])
template <typename T>
struct BiasActivation {
  T* y;
  const float* bias;
  std::int64_t channels;
  bool relu;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float value = static_cast<float>(y[i]) + bias[i % channels];
    y[i] = static_cast<T>(relu && value < 0.0F ? 0.0F : value);  // keeps NaN
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(changes(y), repeats(bias, channels));
  }
};

/// A batch's losses and right answers as they are summed.
struct LossSum {
  double loss;
  double correct;
};

/// Row = part: the sums over its share of the places.
struct LossParts {
  const float* loss;
  const std::uint8_t* correct;
  LossSum* sums;
  std::int64_t places;
  std::int64_t parts;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t part) const {
    double losses = 0.0;
    double right = 0.0;
    const std::int64_t end = (part + 1) * places / parts;
    for (std::int64_t i = part * places / parts + team.lane(); i < end; i += team.size()) {
      losses += static_cast<double>(loss[i]);
      right += static_cast<double>(correct[i]);
    }
    losses = team.sum(losses);
    right = team.sum(right);
    if (team.lane() == 0) {
      sums[part] = {losses, right};
    }
  }
};

/// One row: the sum of all parts, times `share`.
struct LossTotal {
  const LossSum* sums;
  LossSum* total;
  std::int64_t parts;
  double share;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t /*row*/) const {
    double losses = 0.0;
    double right = 0.0;
    for (std::int64_t i = team.lane(); i < parts; i += team.size()) {
      losses += sums[i].loss;
      right += sums[i].correct;
    }
    losses = team.sum(losses);
    right = team.sum(right);
    if (team.lane() == 0) {
      *total = {losses * share, right * share};
    }
  }
};

}  // namespace paceline::kernels
