// SPDX-License-Identifier: Apache-2.0
// Models on a GPU against the same on the CPU, on whatever module the Gpu is made of.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "common/core/cpu/cpu_factory.h"
#include "common/core/gpu/gpu_model.h"
#include "tests/core/inputs.h"

namespace paceline::test {

inline void expect_same_structure(Model& device, Model& cpu) {
  ASSERT_EQ(device.layers(), cpu.layers());
  for (int l = 0; l < cpu.layers(); ++l) {
    EXPECT_EQ(device.layer_name(l), cpu.layer_name(l));
    EXPECT_EQ(device.layer_flops(l), cpu.layer_flops(l)) << cpu.layer_name(l);
  }
  ASSERT_EQ(device.parameters().size(), cpu.parameters().size());
  for (std::size_t p = 0; p < cpu.parameters().size(); ++p) {
    const Parameter& one = cpu.parameters()[p];
    const Parameter& other = device.parameters()[p];
    EXPECT_EQ(other.name, one.name);
    EXPECT_EQ(other.shape, one.shape) << one.name;
    EXPECT_EQ(other.range.begin, one.range.begin) << one.name;
    EXPECT_EQ(other.layer, one.layer) << one.name;
  }
  EXPECT_EQ(device.collective(), cpu.collective());
  EXPECT_EQ(device.buffers().size(), cpu.buffers().size());
}

inline double norm_of(std::span<const float> values) {
  double squares = 0.0;
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

/// ‖a − b‖ / ‖b‖, where ‖b‖ counts as `least` if it is less.
inline double error_against(std::span<const float> a, std::span<const float> b, double least) {
  std::vector<float> difference(b.size());
  std::ranges::transform(a, b, difference.begin(), std::minus<>());
  const double error = norm_of(difference);
  const double norm = std::max(norm_of(b), least);
  return norm > 0.0 ? error / norm : error;
}

/// A model on the CPU and one on a GPU, with the same weights, on the same batches.
class ModelPair {
 public:
  using Build = std::function<std::unique_ptr<Model>(LayerFactory&)>;

  ModelPair(const Build& build, const ModelOptions& options, Gpu& gpu) : gpu_(gpu) {
    CpuFactory factory(options);
    cpu_ = build(factory);
    device_ = build(*make_gpu_factory(options, gpu));
    take_weights(options.precision);
  }
  ModelPair(std::string_view name, SampleShape input, int classes, const ModelOptions& options,
            Gpu& gpu)
      : gpu_(gpu),
        cpu_(make_model(name, input, classes, options)),
        device_(make_gpu_model(name, input, classes, options, gpu)) {
    take_weights(options.precision);
  }

  [[nodiscard]] Model& cpu() const { return *cpu_; }
  [[nodiscard]] Model& device() const { return *device_; }
  [[nodiscard]] std::span<float> device_weights() const { return device_weights_->values(); }
  [[nodiscard]] std::span<float> device_gradients() const { return device_gradients_->values(); }
  [[nodiscard]] const std::vector<float>& gradients() const { return gradients_; }
  [[nodiscard]] std::vector<float> downloaded_gradients() const {
    std::vector<float> out(gradients_.size());
    gpu_.download(device_gradients(), out);
    return out;
  }

  void expect_same_structure() const {
    test::expect_same_structure(*device_, *cpu_);
    std::vector<float> one(weights_.size());
    std::vector<float> other(weights_.size());
    cpu_->initialise(one, 7);
    device_->initialise(other, 7);
    EXPECT_EQ(other, one);
  }

  /// One training batch on both; the batch's own memory is overwritten as soon as it may be.
  void train(std::int64_t samples, std::uint64_t key, float loss_scale = 1.0F) {
    auto x = values(key, static_cast<std::size_t>(samples * cpu_->input_shape().elements()));
    auto y = labels(key, static_cast<std::size_t>(samples * cpu_->positions()), cpu_->classes());
    const Batch batch{x, y, samples, loss_scale};
    expected_ = cpu_->train_batch(batch, weights_, gradients_, nullptr);
    static_cast<void>(device_->train_batch(batch, device_weights(), device_gradients(), nullptr));
    std::ranges::fill(x, std::numeric_limits<float>::quiet_NaN());
    std::ranges::fill(y, -1);
    actual_ = device_->take_result();
  }

  void expect_same_results(double tolerance) const {
    EXPECT_NEAR(actual_.loss_sum, expected_.loss_sum, tolerance * (1.0 + expected_.loss_sum));
    EXPECT_EQ(actual_.correct, expected_.correct);
    const auto got = downloaded_gradients();
    for (const Parameter& parameter : cpu_->parameters()) {
      const auto part = [&](const std::vector<float>& all) {
        return std::span(all).subspan(parameter.range.begin, parameter.range.size());
      };
      EXPECT_LE(error_against(part(got), part(gradients_), least_norm(parameter)), tolerance)
          << parameter.name;
    }
    const std::span<float> kept = cpu_->buffers();
    EXPECT_LE(relative_error(device_->buffers(), widen(kept)), tolerance) << "running statistics";
  }

  void expect_same_evaluation(std::int64_t samples, double tolerance) const {
    const auto x = values(99, static_cast<std::size_t>(samples * cpu_->input_shape().elements()));
    const auto y =
        labels(99, static_cast<std::size_t>(samples * cpu_->positions()), cpu_->classes());
    const Batch batch{x, y, samples};
    const BatchResult one = cpu_->evaluate_batch(batch, weights_);
    const BatchResult other = device_->evaluate_batch(batch, device_weights());
    EXPECT_NEAR(other.loss_sum, one.loss_sum, tolerance * (1.0 + one.loss_sum)) << "evaluation";
  }

  /// SGD on each one's own gradients.
  void descend(float rate) {
    const auto got = downloaded_gradients();
    std::vector<float> moved(weights_.size());
    gpu_.download(device_weights(), moved);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] -= rate * gradients_[i];
      moved[i] -= rate * got[i];
    }
    gpu_.upload(moved, device_weights());
  }
  [[nodiscard]] double weight_error() const {
    std::vector<float> moved(weights_.size());
    gpu_.download(device_weights(), moved);
    return relative_error(moved, widen(weights_));
  }

 private:
  /// A bias before a norm has no gradient but rounding errors; all others' counts as it is.
  [[nodiscard]] double least_norm(const Parameter& parameter) const {
    const int above = parameter.layer + 1;
    if (!parameter.name.ends_with(".bias") || above == cpu_->layers() ||
        !cpu_->layer_name(above).ends_with("_norm")) {
      return 0.0;
    }
    return norm_of(gradients_);
  }
  /// Rounded beforehand, as the CPU rounds biases as well and a GPU does not.
  void take_weights(Precision precision) {
    weights_.resize(cpu_->parameter_elements());
    gradients_.assign(weights_.size(), 0.25F);
    cpu_->initialise(weights_, 7);
    round_values(precision, weights_);
    device_weights_ = gpu_.allocate(weights_.size(), "a test's weights");
    device_gradients_ = gpu_.allocate(weights_.size(), "a test's gradients");
    gpu_.upload(weights_, device_weights());
    gpu_.upload(gradients_, device_gradients());
  }

  Gpu& gpu_;
  std::unique_ptr<DeviceArena> device_weights_;  // freed after the model, which waits for its work
  std::unique_ptr<DeviceArena> device_gradients_;
  std::unique_ptr<Model> cpu_;
  std::unique_ptr<Model> device_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  BatchResult expected_;
  BatchResult actual_;
};

struct SmallModel {
  const char* name;
  SampleShape input;
  const char* norm = "auto";
  double drop_path = 0.0;
};

inline std::vector<SmallModel> small_models() {
  return {{"softmax", {4, 4, 3}},
          {"mlp", {2, 2, 1}, "batch"},
          {"cnn", {8, 8, 1}},
          {"cnn", {8, 8, 1}, "group"},
          {"resmlp", {1, 1, 6}, "auto", 0.5}};
}

/// Steps of SGD on batches of different sizes, in fp32.
inline void check_trajectory(const SmallModel& p, int steps, double tolerance, Gpu& gpu) {
  ModelOptions options;
  options.norm.kind = p.norm;
  options.norm.groups = 4;
  options.drop_path = p.drop_path;
  ModelPair pair(p.name, p.input, 10, options, gpu);
  pair.expect_same_structure();
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE(std::string(p.name) + ", step " + std::to_string(step));
    pair.cpu().begin_step(step);
    pair.device().begin_step(step);
    pair.train(3 + step % 2, 20 + static_cast<std::uint64_t>(step));
    pair.expect_same_results(tolerance);
    pair.descend(0.01F);
  }
  EXPECT_LE(pair.weight_error(), tolerance) << p.name;
  pair.expect_same_evaluation(5, tolerance);
}

/// Batches of any size, none included, with a loss scale.
inline void check_batch_sizes(Precision precision, double tolerance, Gpu& gpu) {
  ModelOptions options;
  options.precision = precision;
  options.evaluation_samples = 8;
  ModelPair pair("mlp", {4, 4, 1}, 10, options, gpu);
  pair.expect_same_structure();
  for (const std::int64_t samples : {3, 5, 2, 0, 4}) {
    SCOPED_TRACE(std::to_string(samples) + " samples");
    pair.train(samples, 10 + static_cast<std::uint64_t>(samples), 8.0F);
    pair.expect_same_results(tolerance);
  }
  pair.expect_same_evaluation(70, tolerance);
}

}  // namespace paceline::test
