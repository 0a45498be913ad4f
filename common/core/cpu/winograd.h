// SPDX-License-Identifier: Apache-2.0
// 3×3 convolutions of stride 1 by Winograd's minimal filtering F(2×2, 3×3) (Lavin & Gray 2016,
// arXiv:1509.09308): a tile of 2×2 outputs takes 16 products per pair of channels instead of 36.
// oneDNN 2.6 has it for AVX-512 alone, and direct convolutions are most of a ResNet's step.
// In fp32 the results differ from a direct convolution's by a few roundings. A sample's results do
// not depend on the other samples of its batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/core/layer_setup.h"
#include "common/core/model.h"

namespace paceline::winograd {

/// What one call works on: x [samples, input], y [samples, output], both NHWC, and weights
/// [output.channels, input.channels, 3, 3]. output is 2·padding − 2 larger each way than input.
struct Problem {
  std::int64_t samples;
  SampleShape input;
  SampleShape output;
  std::int64_t padding;  ///< 0, 1 or 2
};

/// Whether the functions below compute such a convolution: 3×3, stride 1, padding of at most 2,
/// channels in whole vectors.
[[nodiscard]] bool computes(const SampleShape& input, const ConvShape& conv) noexcept;

/// Width of the vectors that this build computes with.
[[nodiscard]] int vector_bits() noexcept;

/// Floats of `scratch` that each call may write; independent of the number of samples.
[[nodiscard]] std::size_t scratch_elements(const SampleShape& input, std::int64_t outputs) noexcept;

/// y = act(bias + x ⋆ weights); bias [output.channels] or null.
void forward(const Problem& problem, const float* x, const float* weights, const float* bias,
             bool relu, float* y, float* scratch);
/// d_x of the gradient d_y.
void input_gradient(const Problem& problem, const float* d_y, const float* weights, float* d_x,
                    float* scratch);
/// d_weights, summed over the samples.
void weight_gradient(const Problem& problem, const float* x, const float* d_y, float* d_weights,
                     float* scratch);

}  // namespace paceline::winograd
