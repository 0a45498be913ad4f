// SPDX-License-Identifier: Apache-2.0
// A layer against its naive double version: the forward directly, the gradients against central
// differences of that version, so that neither the core's forward nor its backward judges itself.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "common/core/layer.h"
#include "tests/core/inputs.h"

namespace paceline::test {

using Tensor = std::vector<double>;
using Reference = std::function<Tensor(const Tensor& x, std::span<const double> parameters)>;

inline constexpr double kTolerance = 1e-5;
inline constexpr double kStep = 1e-6;

/// d(Σ r·f)/d(variable) by central differences.
inline Tensor differences(Tensor& variable, const Tensor& cotangent,
                          const std::function<Tensor()>& f) {
  const auto weighted = [&] {
    const Tensor y = f();
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum += cotangent[i] * y[i];
    }
    return sum;
  };
  Tensor gradient(variable.size());
  for (std::size_t i = 0; i < variable.size(); ++i) {
    const double kept = variable[i];
    variable[i] = kept + kStep;
    const double above = weighted();
    variable[i] = kept - kStep;
    const double below = weighted();
    variable[i] = kept;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

inline std::size_t parameter_count(const Layer& layer) {
  std::size_t count = 0;
  for (const ParameterSpec& spec : layer.parameters()) {
    count += spec.elements();
  }
  return count;
}

inline void check_layer(Layer& layer, std::int64_t samples, const std::vector<float>& x,
                        const Reference& reference) {
  const std::vector<float> w = values(2, parameter_count(layer), 0.5F);
  const auto outputs = static_cast<std::size_t>(samples * layer.output_shape().elements());
  const std::vector<float> r = values(3, outputs);
  const float junk = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(outputs, junk);
  std::vector<float> dx(x.size(), junk);
  std::vector<float> dw(w.size(), junk);
  std::vector<float> dy = r;
  std::vector<float> buffers(layer.buffer_elements());
  layer.initialise_buffers(buffers);
  layer.forward({samples, x.data(), y.data(), w.data(), buffers.data()});
  layer.backward({samples, x.data(), y.data(), dy.data(), dx.data(), w.data(), dw.data()});

  Tensor x64 = widen(x);
  Tensor w64 = widen(w);
  const Tensor r64 = widen(r);
  const auto f = [&] { return reference(x64, w64); };
  EXPECT_LE(relative_error(y, f()), kTolerance) << "forward";
  EXPECT_LE(relative_error(dx, differences(x64, r64, f)), kTolerance) << "input gradient";
  const Tensor dw64 = differences(w64, r64, f);
  std::size_t begin = 0;
  for (const ParameterSpec& spec : layer.parameters()) {
    const std::size_t n = spec.elements();
    EXPECT_LE(relative_error(std::span(dw).subspan(begin, n), std::span(dw64).subspan(begin, n)),
              kTolerance)
        << spec.name;
    begin += n;
  }

  // A first layer has no input gradient; its weights' gradient is the same.
  std::vector<float> dw_first(w.size(), junk);
  dy = r;
  layer.backward({samples, x.data(), y.data(), dy.data(), nullptr, w.data(), dw_first.data()});
  EXPECT_EQ(dw_first, dw);
}

}  // namespace paceline::test
