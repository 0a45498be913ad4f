// SPDX-License-Identifier: Apache-2.0
// What a model is made of. A layer maps a batch of activations to another, in place of nothing:
// its caller owns all activations and their gradients, the layer owns only what its arithmetic
// needs besides (primitives, indices of maxima).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/model.h"

namespace paceline {

/// One parameter tensor of a layer.
struct ParameterSpec {
  std::string name;                 ///< within the layer: "weight", "bias"
  std::vector<std::int64_t> shape;  ///< PyTorch's layout
  std::int64_t fan_in = 1;          ///< inputs that one output sums over; bounds the initial values
  std::optional<float> initial{};   ///< every element starts with it; none: drawn within the bound
  [[nodiscard]] std::size_t elements() const noexcept {
    std::size_t count = 1;
    for (const std::int64_t extent : shape) {
      count *= static_cast<std::size_t>(extent);
    }
    return count;
  }
};

/// Operands of one forward call. Activations are [samples, height, width, channels], dense fp32; on
/// a GPU all pointers are addresses of the device, and activations of the model's format.
struct ForwardPass {
  std::int64_t samples;
  const float* input;
  float* output;
  const float* weights;      ///< the layer's tensors, one after the other as in parameters()
  float* buffers = nullptr;  ///< its buffer_elements() floats of state, read and written
  bool training = true;      ///< false: evaluation, which leaves `buffers` alone
  /// Norms only: added to the output before its activation, shaped like it; null: nothing. In
  /// backward its gradient is `d_output` as the layer leaves it (masked by a ReLU that it masks).
  const float* addend = nullptr;
};

/// Operands of one backward call; the activations are those of the forward call before it.
struct BackwardPass {
  std::int64_t samples;
  const float* input;
  const float* output;
  float* d_output;  ///< gradient of the loss with respect to `output`; may be overwritten
  float* d_input;   ///< written; null for the first layer, whose input gradient nobody reads
  const float* weights;
  float* gradients;  ///< overwritten with the sum over samples; laid out like `weights`
};

/// What is rounded to the format of precision.compute around a layer.
enum class Rounding : std::uint8_t {
  all,          ///< weights, their gradients, outputs and input gradients: products
  activations,  ///< outputs and input gradients; parameters stay fp32 (norms), or are the layer's
                ///< own affair (blocks)
  nothing,      ///< the layer moves values only
};

/// Called from one thread. samples >= 1 in every call (in a collective() layer >= 0); the number
/// may change from call to call.
class Layer {
 public:
  Layer(std::string name, SampleShape input, SampleShape output)
      : name_(std::move(name)), input_(input), output_(output) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  [[nodiscard]] const SampleShape& input_shape() const noexcept { return input_; }
  [[nodiscard]] const SampleShape& output_shape() const noexcept { return output_; }
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters() const { return {}; }
  /// Multiply-adds ×2 (for a layer without products: operations) of one sample's forward.
  [[nodiscard]] virtual double flops() const = 0;

  /// Floats of state that training updates besides the weights (running statistics), and their
  /// first values.
  [[nodiscard]] virtual std::size_t buffer_elements() const noexcept { return 0; }
  virtual void initialise_buffers(std::span<float> /*buffers*/) const {}
  /// Whether training calls involve all ranks, so that a rank without samples makes them as well.
  [[nodiscard]] virtual bool collective() const noexcept { return false; }

  /// Chance that a training step leaves the layer out (then its output is its input); 0: never.
  [[nodiscard]] virtual double drop_chance() const noexcept { return 0.0; }
  [[nodiscard]] virtual Rounding rounding() const noexcept { return Rounding::all; }
  /// Whether it takes fp32 weights and rounds them itself.
  [[nodiscard]] virtual bool rounds_weights() const noexcept { return false; }

  virtual void forward(const ForwardPass& pass) = 0;
  virtual void backward(const BackwardPass& pass) = 0;

  /// Bytes that the layer itself holds for batches seen so far.
  [[nodiscard]] virtual std::size_t held_bytes() const noexcept { return 0; }
  /// What held_bytes() will be after such a batch.
  [[nodiscard]] virtual std::size_t planned_bytes(const PlannedBatch& /*batch*/) const { return 0; }
  /// What it will want of the memory that the layers of a model share.
  [[nodiscard]] virtual ScratchAreas planned_scratch(const PlannedBatch& /*batch*/) const {
    return {};
  }
  /// What computes the primitives made so far, e.g. "forward jit:avx512_core" (diagnostics).
  [[nodiscard]] virtual std::vector<std::string> implementations() const { return {}; }

 private:
  std::string name_;
  SampleShape input_;
  SampleShape output_;
};

/// "LAYER: IMPLEMENTATION" of each, in order.
[[nodiscard]] std::vector<std::string> implementations_of(
    std::span<const std::unique_ptr<Layer>> layers);

}  // namespace paceline
