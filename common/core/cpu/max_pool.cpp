// SPDX-License-Identifier: Apache-2.0
#include "common/base/buffer.h"
#include "common/core/cpu/layers.h"
#include "common/core/kernels.h"

namespace paceline {

namespace {

class MaxPool final : public Layer {
 public:
  MaxPool(std::string name, SampleShape input, bool after_relu)
      : Layer(std::move(name), input, {input.height / 2, input.width / 2, input.channels}),
        after_relu_(after_relu) {}

  /// Three comparisons an output.
  [[nodiscard]] double flops() const override {
    return 3.0 * static_cast<double>(output_shape().elements());
  }

  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::nothing; }

  void forward(const ForwardPass& pass) override {
    const auto bytes = static_cast<std::size_t>(pass.samples * output_shape().elements());
    winners_.grow(bytes);
    kernels::for_rows(pass.samples * output_shape().height,
                      kernels::MaxPoolForward{pass.input, pass.output, winners(), geometry()});
  }

  void backward(const BackwardPass& pass) override {
    const kernels::MaxPoolBackward row{pass.output,  winners(),  pass.d_output,
                                       pass.d_input, geometry(), after_relu_};
    kernels::for_rows(pass.samples * output_shape().height, row);
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override { return winners_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    return static_cast<std::size_t>(batch.samples * output_shape().elements());
  }

 private:
  [[nodiscard]] kernels::PoolGeometry geometry() const noexcept {
    return {input_shape().height, input_shape().width, input_shape().channels};
  }
  [[nodiscard]] std::uint8_t* winners() const noexcept {
    return winners_.as<std::uint8_t>().data();
  }

  bool after_relu_;
  Buffer winners_;  // 0..3, which of the four was largest, per output
};

}  // namespace

std::unique_ptr<Layer> make_max_pool(std::string name, SampleShape input, bool after_relu) {
  check_max_pool(name, input);
  return std::make_unique<MaxPool>(std::move(name), input, after_relu);
}

}  // namespace paceline
