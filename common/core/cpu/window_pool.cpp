// SPDX-License-Identifier: Apache-2.0
#include "common/base/buffer.h"
#include "common/core/cpu/layers.h"
#include "common/core/kernels_pool.h"

namespace paceline {

namespace {

class WindowMaxPool final : public Layer {
 public:
  WindowMaxPool(std::string name, SampleShape input, const kernels::WindowGeometry& geometry)
      : Layer(std::move(name), input, {geometry.rows, geometry.columns, geometry.channels}),
        geometry_(geometry) {}

  /// A comparison for every value of a window.
  [[nodiscard]] double flops() const override {
    return static_cast<double>(output_shape().elements() * geometry_.kernel * geometry_.kernel);
  }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::nothing; }

  void forward(const ForwardPass& pass) override {
    const auto bytes = static_cast<std::size_t>(pass.samples * output_shape().elements());
    winners_.grow(bytes);
    kernels::for_rows(pass.samples * geometry_.rows,
                      kernels::WindowMaxForward{pass.input, pass.output, winners(), geometry_});
  }

  void backward(const BackwardPass& pass) override {
    if (pass.d_input != nullptr) {
      kernels::for_rows(
          pass.samples * geometry_.height,
          kernels::WindowMaxBackward{winners(), pass.d_output, pass.d_input, geometry_});
    }
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override { return winners_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    return static_cast<std::size_t>(batch.samples * output_shape().elements());
  }

 private:
  [[nodiscard]] std::uint8_t* winners() const noexcept {
    return winners_.as<std::uint8_t>().data();
  }

  kernels::WindowGeometry geometry_;
  Buffer winners_;  // of every output
};

class GlobalAverage final : public Layer {
 public:
  GlobalAverage(std::string name, SampleShape input)
      : Layer(std::move(name), input, {1, 1, input.channels}),
        positions_(input.height * input.width) {}

  [[nodiscard]] double flops() const override {
    return static_cast<double>(input_shape().elements());
  }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::activations; }

  void forward(const ForwardPass& pass) override {
    kernels::for_rows(pass.samples, kernels::AverageForward{pass.input, pass.output, positions_,
                                                            input_shape().channels});
  }

  void backward(const BackwardPass& pass) override {
    if (pass.d_input != nullptr) {
      kernels::for_rows(pass.samples * positions_,
                        kernels::AverageBackward{pass.d_output, pass.d_input, positions_,
                                                 input_shape().channels});
    }
  }

 private:
  std::int64_t positions_;
};

}  // namespace

std::unique_ptr<Layer> make_window_max_pool(std::string name, SampleShape input,
                                            std::int64_t kernel, std::int64_t stride,
                                            std::int64_t padding) {
  const kernels::WindowGeometry geometry = checked_window(name, input, kernel, stride, padding);
  return std::make_unique<WindowMaxPool>(std::move(name), input, geometry);
}

std::unique_ptr<Layer> make_global_average(std::string name, SampleShape input) {
  return std::make_unique<GlobalAverage>(std::move(name), input);
}

}  // namespace paceline
