// SPDX-License-Identifier: Apache-2.0
// The core on a GPU against the core on the CPU, on whatever module is given: a double on the host
// or a real GPU. Layers of both come from their factories; gpu_model_checks.h has models.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "common/base/half.h"
#include "common/core/cpu/cpu_factory.h"
#include "common/core/gpu/gpu_model.h"
#include "common/core/residual.h"
#include "tests/core/inputs.h"
#include "tests/core/stored_values.h"

namespace paceline::test {

struct LayerCase {
  std::string name;
  std::function<std::unique_ptr<Layer>(LayerFactory&)> make;
  std::vector<std::int64_t> samples{3};  ///< of batches, one after the other
  bool addend = false;
};

/// What a layer made of one batch.
struct LayerTrace {
  std::vector<float> output;
  std::vector<float> d_output;  ///< as the layer left it
  std::vector<float> d_input;
  std::vector<float> gradients;
  std::vector<float> buffers;
  std::vector<float> evaluated;
};

/// Operands of one batch, those that are stored in `precision` rounded to it.
struct LayerOperands {
  LayerOperands(const Layer& layer, std::int64_t n, bool with_addend, Precision precision)
      : samples(n),
        x(values(1, static_cast<std::size_t>(n * layer.input_shape().elements()))),
        dy(values(3, static_cast<std::size_t>(n * layer.output_shape().elements()))),
        addend(with_addend ? values(4, dy.size()) : std::vector<float>{}),
        weights(values(2, tensors_of(layer), 0.5F)),
        buffers(layer.buffer_elements()) {
    for (auto* stored : {&x, &dy, &addend}) {
      round_values(precision, *stored);
    }
    if (layer.rounding() == Rounding::all) {
      round_values(precision, weights);
    }
    layer.initialise_buffers(buffers);
  }
  std::int64_t samples;
  std::vector<float> x;
  std::vector<float> dy;
  std::vector<float> addend;
  std::vector<float> weights;
  std::vector<float> buffers;
};

inline LayerTrace run_on_cpu(Layer& layer, const LayerOperands& o) {
  LayerTrace t{std::vector<float>(o.dy.size()),      o.dy,      std::vector<float>(o.x.size()),
               std::vector<float>(o.weights.size()), o.buffers, std::vector<float>(o.dy.size())};
  const float* addend = o.addend.empty() ? nullptr : o.addend.data();
  ForwardPass pass{o.samples,        o.x.data(), t.output.data(), o.weights.data(),
                   t.buffers.data(), true,       addend};
  layer.forward(pass);
  layer.backward({o.samples, o.x.data(), t.output.data(), t.d_output.data(), t.d_input.data(),
                  o.weights.data(), t.gradients.data()});
  pass.training = false;
  pass.output = t.evaluated.data();
  layer.forward(pass);
  return t;
}

/// How many elements after an aligned address tensors begin.
struct Shifts {
  std::size_t activations = 0;
  std::size_t gradients = 0;  ///< of activations
  std::size_t weights = 0;    ///< and their gradients
};

inline LayerTrace run_on_gpu(Layer& layer, const LayerOperands& o, Precision format, Gpu& gpu,
                             const Shifts& shifts = {}) {
  const auto junk = [](std::size_t n) {
    return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
  };
  const StoredValues x(gpu, o.x, format, shifts.activations);
  const StoredValues addend(gpu, o.addend, format, shifts.activations);
  const StoredValues y(gpu, junk(o.dy.size()), format, shifts.activations);
  const StoredValues dy(gpu, o.dy, format, shifts.gradients);
  const StoredValues dx(gpu, junk(o.x.size()), format, shifts.gradients);
  const StoredValues weights(gpu, o.weights, Precision::fp32, shifts.weights);
  const StoredValues gradients(gpu, junk(o.weights.size()), Precision::fp32, shifts.weights);
  const StoredValues buffers(gpu, o.buffers, Precision::fp32);
  ForwardPass pass{o.samples,
                   x.get(),
                   y.get(),
                   weights.get(),
                   buffers.get(),
                   true,
                   o.addend.empty() ? nullptr : addend.get()};
  layer.forward(pass);
  layer.backward({o.samples, x.get(), y.get(), dy.get(), dx.get(), weights.get(), gradients.get()});
  LayerTrace t{y.values(), dy.values(), dx.values(), gradients.values(), buffers.values(), {}};
  pass.training = false;
  layer.forward(pass);
  t.evaluated = y.values();
  return t;
}

inline void expect_near(const std::vector<float>& gpu, const std::vector<float>& cpu,
                        double tolerance, const char* what) {
  EXPECT_LE(relative_error(gpu, widen(cpu)), tolerance) << what;
}

/// A layer of each factory on the same batches.
inline void check_layer_case(const LayerCase& test, Precision precision, double tolerance, Gpu& gpu,
                             const Shifts& shifts = {}) {
  ModelOptions options;
  options.precision = precision;
  CpuFactory cpu(options);
  const auto device = make_gpu_factory(options, gpu);
  const auto one = test.make(cpu);
  const auto other = test.make(*device);
  EXPECT_EQ(other->name(), one->name());
  EXPECT_EQ(other->flops(), one->flops());
  EXPECT_EQ(other->output_shape(), one->output_shape());
  for (const std::int64_t samples : test.samples) {
    SCOPED_TRACE(test.name + " " + std::string(precision_name(precision)) + " " +
                 std::to_string(samples) + " samples");
    const LayerOperands operands(*one, samples, test.addend, precision);
    const LayerTrace expected = run_on_cpu(*one, operands);
    const LayerTrace actual = run_on_gpu(*other, operands, precision, gpu, shifts);
    expect_near(actual.output, expected.output, tolerance, "output");
    expect_near(actual.d_input, expected.d_input, tolerance, "input gradient");
    expect_near(actual.gradients, expected.gradients, tolerance, "parameter gradients");
    expect_near(actual.buffers, expected.buffers, tolerance, "running statistics");
    expect_near(actual.evaluated, expected.evaluated, tolerance, "evaluation");
    if (test.addend) {
      expect_near(actual.d_output, expected.d_output, tolerance, "the addend's gradient");
    }
  }
  gpu.stream().synchronize();
}

inline LayerCase norm_case(const char* name, NormKind kind, SampleShape in,
                           std::vector<std::int64_t> samples, bool addend = false,
                           StatisticsReducer* reducer = nullptr) {
  return {name,
          [=](LayerFactory& f) {
            NormSetup setup;
            setup.kind = kind;
            setup.groups = 2;
            setup.activation = Activation::relu;
            setup.reducer = reducer;
            return f.norm("norm", in, setup);
          },
          std::move(samples), addend};
}

/// The shortcut of a ResNet block where there is one.
inline std::unique_ptr<Layer> small_block(LayerFactory& f, bool projected,
                                          std::int64_t channels = 4) {
  const SampleShape in{5, 5, channels};
  const std::int64_t stride = projected ? 2 : 1;
  const auto add = [&](auto& to, const char* name, SampleShape from, ConvShape conv, bool relu) {
    to.push_back(f.conv2d(name, from, conv, Activation::none, ReluMask::here));
    NormSetup norm;
    norm.activation = relu ? Activation::relu : Activation::none;
    to.push_back(f.norm(std::string(name) + "_norm", to.back()->output_shape(), norm));
  };
  std::vector<std::unique_ptr<Layer>> branch;
  std::vector<std::unique_ptr<Layer>> shortcut;
  const std::int64_t outputs = projected ? channels + channels / 2 : channels;
  add(branch, "conv1", in, {outputs, 3, stride, 1, false}, true);
  add(branch, "conv2", branch.back()->output_shape(), {outputs, 3, 1, 1, false}, true);
  if (projected) {
    add(shortcut, "shortcut", in, {outputs, 1, stride, 0, false}, false);
  }
  return make_resnet_block("block", std::move(branch), std::move(shortcut), f.store());
}

inline std::vector<LayerCase> layer_cases() {
  constexpr Activation kRelu = Activation::relu;
  constexpr ReluMask kHere = ReluMask::here;
  return {
      {"linear",
       [](auto& f) {
         return f.linear("fc", {1, 1, 9}, 5, Activation::none);
       },
       {4, 7, 2}},
      {"linear relu",
       [](auto& f) {
         return f.linear("fc", {1, 1, 33}, 70, kRelu);
       },
       {130}},
      {"flatten",
       [](auto& f) {
         return f.flatten("flatten", {3, 2, 5});
       }},
      {"conv",
       [](auto& f) {
         return f.conv2d("c", {6, 5, 3}, {4}, kRelu, kHere);
       },
       {2, 3, 1}},
      {"conv stem",
       [](auto& f) {
         return f.conv2d("c", {9, 9, 3}, {5, 7, 2, 3, false}, Activation::none, kHere);
       }},
      {"conv 1x1",
       [](auto& f) {
         return f.conv2d("c", {4, 4, 6}, {7, 1, 1, 0, false}, Activation::none, kHere);
       }},
      {"max pool",
       [](auto& f) {
         return f.max_pool("pool", {5, 7, 33}, true);
       },
       {2, 1}},
      {"window max",
       [](auto& f) {
         return f.window_max_pool("pool", {9, 8, 5}, 3, 2, 1);
       }},
      {"average",
       [](auto& f) {
         return f.global_average("mean", {3, 4, 35});
       }},
      {"max pool of packs",
       [](auto& f) {
         return f.max_pool("pool", {7, 5, 16}, false);
       }},
      {"window max of packs",
       [](auto& f) {
         return f.window_max_pool("pool", {9, 8, 64}, 3, 2, 1);
       }},
      {"average of packs",
       [](auto& f) {
         return f.global_average("mean", {7, 7, 24});
       }},
      norm_case("batch", NormKind::batch, {4, 4, 6}, {3, 5, 2}),
      norm_case("batch of many rows", NormKind::batch, {16, 16, 40}, {4}, true),
      norm_case("batch of vectors", NormKind::batch, {1, 1, 70}, {5}),
      norm_case("group", NormKind::group, {4, 4, 6}, {3, 1}, true),
      norm_case("layer", NormKind::layer, {3, 5, 4}, {2}),
      {"residual",
       [](LayerFactory& f) {
         return make_residual(f.linear("b", {1, 1, 12}, 12, kRelu), 0.25, f.store());
       },
       {3, 6}},
      {"block", [](LayerFactory& f) { return small_block(f, false); }, {3, 2}},
      {"projected block", [](LayerFactory& f) { return small_block(f, true); }, {3, 4}},
  };
}

inline void check_layers(Precision precision, double tolerance, Gpu& gpu) {
  for (const LayerCase& test : layer_cases()) {
    check_layer_case(test, precision, tolerance, gpu);
  }
}

/// Layers of which cuDNN has a kernel, in all three formats (GpuOptions::norm and pool).
inline std::vector<LayerCase> dnn_layer_cases() {
  const auto norm = [](const char* name, Activation activation, ReluMask mask, SampleShape in,
                       std::vector<std::int64_t> samples, bool addend) -> LayerCase {
    return {name,
            [=](LayerFactory& f) {
              NormSetup setup;
              setup.activation = activation;
              setup.mask = mask;
              return f.norm("norm", in, setup);
            },
            std::move(samples), addend};
  };
  constexpr Activation kRelu = Activation::relu;
  constexpr ReluMask kHere = ReluMask::here;
  return {
      norm("batch", Activation::none, kHere, {4, 4, 8}, {3, 5}, false),
      norm("batch relu", kRelu, kHere, {7, 5, 16}, {3}, false),
      norm("batch relu masked above", kRelu, ReluMask::above, {4, 4, 8}, {3}, false),
      norm("batch of vectors", kRelu, kHere, {1, 1, 72}, {5}, false),
      norm("batch add relu of many rows", kRelu, kHere, {32, 32, 8}, {4}, true),
      {"max pool",
       [](auto& f) {
         return f.max_pool("pool", {6, 8, 8}, true);
       }},
      {"max pool of odd extents",
       [](auto& f) {
         return f.max_pool("pool", {5, 7, 33}, false);
       }},
      {"window max",
       [](auto& f) {
         return f.window_max_pool("pool", {9, 8, 5}, 3, 2, 1);
       }},
      {"average",
       [](auto& f) {
         return f.global_average("mean", {7, 4, 16});
       }},
      {"block", [](LayerFactory& f) { return small_block(f, true, 16); }},
  };
}

inline void check_dnn_layers(Precision precision, double tolerance, Gpu& gpu) {
  for (const LayerCase& test : dnn_layer_cases()) {
    check_layer_case(test, precision, tolerance, gpu);
  }
}

/// The same bits from the same batch.
inline void expect_layers_repeat(Precision precision, Gpu& gpu) {
  ModelOptions options;
  options.precision = precision;
  const auto factory = make_gpu_factory(options, gpu);
  for (const LayerCase& test : dnn_layer_cases()) {
    SCOPED_TRACE(test.name);
    const auto layer = test.make(*factory);
    const LayerOperands operands(*layer, test.samples.front(), test.addend, precision);
    const LayerTrace first = run_on_gpu(*layer, operands, precision, gpu);
    const LayerTrace again = run_on_gpu(*layer, operands, precision, gpu);
    EXPECT_EQ(first.output, again.output);
    EXPECT_EQ(first.d_input, again.d_input);
    EXPECT_EQ(first.gradients, again.gradients);
    EXPECT_EQ(first.buffers, again.buffers);
  }
}

}  // namespace paceline::test
