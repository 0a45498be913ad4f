// SPDX-License-Identifier: Apache-2.0
// What a norm is on every device: its tensors, its state and what it shares with other ranks.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/core/layer_setup.h"

namespace paceline {

/// Parameters "gamma" [c] and "beta" [c]; buffers of batch and sync_batch: running mean [c],
/// running variance [c].
class NormLayer : public Layer {
 public:
  NormLayer(std::string name, SampleShape input, const NormSetup& setup)
      : Layer(std::move(name), input, input), setup_(setup) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const final {
    return {{"gamma", {channels()}, 1, 1.0F}, {"beta", {channels()}, 1, 0.0F}};
  }
  /// Mean, variance, scale and shift: two operations each.
  [[nodiscard]] double flops() const final {
    return 8.0 * static_cast<double>(input_shape().elements());
  }
  [[nodiscard]] Rounding rounding() const noexcept final { return Rounding::activations; }

  [[nodiscard]] std::size_t buffer_elements() const noexcept final {
    const bool keeps = setup_.kind == NormKind::batch || setup_.kind == NormKind::sync_batch;
    return keeps ? 2 * static_cast<std::size_t>(channels()) : 0;
  }
  void initialise_buffers(std::span<float> buffers) const final {
    const std::size_t half = buffers.size() / 2;
    std::ranges::fill(buffers.first(half), 0.0F);
    std::ranges::fill(buffers.subspan(half), 1.0F);
  }
  [[nodiscard]] bool collective() const noexcept final {
    return setup_.kind == NormKind::sync_batch;
  }

 protected:
  [[nodiscard]] std::int64_t channels() const noexcept { return input_shape().channels; }
  [[nodiscard]] std::int64_t positions() const noexcept {
    return input_shape().height * input_shape().width;
  }
  [[nodiscard]] const NormSetup& setup() const noexcept { return setup_; }
  /// Whether backward masks the gradient by the ReLU's output itself.
  [[nodiscard]] bool masks() const noexcept {
    return setup_.activation == Activation::relu && setup_.mask == ReluMask::here;
  }
  [[nodiscard]] bool sums_over_ranks() const noexcept {
    return collective() && setup_.reducer != nullptr;
  }

 private:
  NormSetup setup_;
};

}  // namespace paceline
