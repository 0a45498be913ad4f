// SPDX-License-Identifier: Apache-2.0
// The layers of the CPU device. Activations are NHWC; parameters stay in PyTorch's layout in the
// flat arenas and are brought into the layout that oneDNN prefers anew in every step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/core/layer_setup.h"
#include "common/core/precision.h"
#include "common/core/sequential.h"

namespace paceline {

/// oneDNN's engine and the scratch memory that all layers of one model share.
class DnnlContext;
/// `operands`: what the layers' products multiply, bf16 only where native_precision() has it. With
/// bf16 the layers round weights, inputs and output gradients to it themselves; sums, outputs and
/// gradients are fp32.
[[nodiscard]] std::shared_ptr<DnnlContext> make_dnnl_context(Precision operands = Precision::fp32);
/// The same as what Sequential takes.
[[nodiscard]] std::shared_ptr<SharedScratch> as_shared_scratch(
    std::shared_ptr<DnnlContext> context);

/// y = act(W·x + b): x [n, in], W [out, in], b [out], y [n, out].
/// dW = dyᵀ·x, db = Σ dy, dx = dy·W, with dy masked by y > 0 under ReLU.
/// Throws Error for an input that has to be flattened first.
[[nodiscard]] std::unique_ptr<Layer> make_linear(std::shared_ptr<DnnlContext> context,
                                                 std::string name, SampleShape input,
                                                 std::int64_t outputs, Activation activation);

/// x [n, h, w, c] -> y [n, c·h·w] in PyTorch's order: y[(c·height + h)·width + w] = x[h, w, c], so
/// that the linear layer above has PyTorch's weight. Moving activations is cheaper than moving that
/// weight three times a step.
[[nodiscard]] std::unique_ptr<Layer> make_flatten(std::shared_ptr<DnnlContext> context,
                                                  std::string name, SampleShape input);

/// 3×3 convolution, stride 1, no padding:
/// y[h, w, o] = act(b[o] + Σ_{i, j, c} x[h+i, w+j, c]·W[o, c, i, j]); y is 2 smaller each way.
/// Throws ConfigError when the input is smaller than 3×3.
[[nodiscard]] std::unique_ptr<Layer> make_conv2d(std::shared_ptr<DnnlContext> context,
                                                 std::string name, SampleShape input,
                                                 std::int64_t outputs, Activation activation,
                                                 ReluMask mask);

/// Any such convolution, output (h + 2·padding − kernel)/stride + 1 rows:
/// y[h, w, o] = act(b[o] + Σ_{i, j, c} x[h·stride+i−padding, w·stride+j−padding, c]·W[o, c, i, j]).
/// Throws ConfigError when the kernel does not fit into the padded input.
[[nodiscard]] std::unique_ptr<Layer> make_conv2d(std::shared_ptr<DnnlContext> context,
                                                 std::string name, SampleShape input,
                                                 const ConvShape& shape, Activation activation,
                                                 ReluMask mask);

/// Whether such a convolution is one of those below and faster so: oneDNN's direct ones must not
/// have wider vectors on this processor than this build.
[[nodiscard]] bool prefers_winograd(const SampleShape& input, const ConvShape& shape);
/// The same by Winograd's minimal filtering, for what winograd::computes() and a context of fp32.
[[nodiscard]] std::unique_ptr<Layer> make_winograd_conv2d(std::shared_ptr<DnnlContext> context,
                                                          std::string name, SampleShape input,
                                                          const ConvShape& shape,
                                                          Activation activation, ReluMask mask);

/// 2×2 maximum, stride 2; an odd last row or column is left out and gets no gradient. The gradient
/// goes to the first of equal maxima in row order.
/// `after_relu`: the input is a ReLU's output, and d_input also carries that ReLU's mask: a maximum
/// of 0 passes nothing on. Throws ConfigError when the input is smaller than 2×2.
[[nodiscard]] std::unique_ptr<Layer> make_max_pool(std::string name, SampleShape input,
                                                   bool after_relu);

/// kernel×kernel maximum with `stride` and `padding` (never chosen), kernel ≤ 15, for windows that
/// may overlap: an input gets the gradients of all windows whose first maximum it is, in row order.
/// Throws ConfigError when the kernel does not fit into the padded input.
[[nodiscard]] std::unique_ptr<Layer> make_window_max_pool(std::string name, SampleShape input,
                                                          std::int64_t kernel, std::int64_t stride,
                                                          std::int64_t padding);

/// y[c] = mean over all positions of x[h, w, c]; y is 1×1×c.
[[nodiscard]] std::unique_ptr<Layer> make_global_average(std::string name, SampleShape input);

}  // namespace paceline
