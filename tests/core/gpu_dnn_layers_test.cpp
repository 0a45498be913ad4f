// SPDX-License-Identifier: Apache-2.0
// Batch norms and pools as cuDNN computes them (GpuOptions::norm and pool), by the host's double of
// the module, against the core on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/error.h"
#include "common/core/resnet.h"
#include "tests/core/gpu_checks.h"
#include "tests/core/gpu_model_checks.h"
#include "tests/core/graph_checks.h"
#include "tests/support/host_layers.h"
#include "tests/support/host_module.h"

namespace paceline {
namespace {

constexpr Precision kAllFormats[] = {Precision::fp32, Precision::bf16, Precision::fp16};

const CudaModule& dnn_module() {
  static const CudaModule module(test::host_module());
  return module;
}

GpuOptions by(LayerEngine engine) {
  GpuOptions options;
  options.norm = engine;
  options.pool = engine;
  return options;
}

double tolerance_of(Precision precision) {
  return precision == Precision::fp32 ? 1e-5 : 1e-2;
}

/// How many norms and pools, with their gradients, the double's cuDNN computes meanwhile.
template <typename Work>
std::int64_t dnn_calls(const Work& work) {
  const std::int64_t before = test::host_layer_calls();
  work();
  return test::host_layer_calls() - before;
}

TEST(GpuDnnLayers, MatchTheCpus) {
  for (const Precision precision : kAllFormats) {
    Gpu gpu(dnn_module(), by(LayerEngine::dnn));
    for (const test::LayerCase& layer : test::dnn_layer_cases()) {
      const auto batches = static_cast<std::int64_t>(layer.samples.size());
      const std::int64_t layers = layer.name == "block" ? 3 : 1;
      const bool is_norm = layer.name.find("batch") == 0 || layers > 1;
      EXPECT_EQ(dnn_calls([&] {
                  test::check_layer_case(layer, precision, tolerance_of(precision), gpu);
                }),
                (is_norm ? 2 : 3) * layers * batches)
          << layer.name << ": forward, backward, and a pool's evaluation";
    }
  }
}

TEST(GpuDnnLayers, OwnKernelsComputeTheRestOfEither) {
  for (const Precision precision : kAllFormats) {
    Gpu gpu(dnn_module(), by(LayerEngine::either));
    EXPECT_GT(dnn_calls([&] { test::check_layers(precision, tolerance_of(precision), gpu); }), 0);
    const auto odd = test::norm_case("odd", NormKind::batch, {4, 4, 6}, {3, 2}, true);
    EXPECT_EQ(
        dnn_calls([&] { test::check_layer_case(odd, precision, tolerance_of(precision), gpu); }),
        0);
  }
}

/// Weights lie anywhere in their arena; where activations do not lie as cuDNN takes them, own
/// kernels compute.
TEST(GpuDnnLayers, TakeWeightsAnywhereAndLeaveMisalignedActivationsAlone) {
  for (const Precision precision : kAllFormats) {
    Gpu gpu(dnn_module(), by(LayerEngine::either));
    const auto calls = [&](const test::LayerCase& layer, const test::Shifts& shifts) {
      return dnn_calls(
          [&] { test::check_layer_case(layer, precision, tolerance_of(precision), gpu, shifts); });
    };
    const auto norm = test::norm_case("norm", NormKind::batch, {4, 4, 16}, {3}, true);
    EXPECT_EQ(calls(norm, {0, 0, 2}), 2);
    EXPECT_EQ(calls(norm, {0, 2, 0}), 1) << "the gradient alone is own";
    EXPECT_EQ(calls(norm, {2, 0, 0}), 0);
    const test::LayerCase pool{"pool",
                               [](auto& f) {
                                 return f.window_max_pool("pool", {6, 6, 16}, 3, 2, 1);
                               },
                               {2}};
    EXPECT_EQ(calls(pool, {0, 0, 0}), 3);
    EXPECT_EQ(calls(pool, {0, 2, 0}), 2);
    EXPECT_EQ(calls(pool, {2, 0, 0}), 0);
  }
}

TEST(GpuDnnLayers, OwnIsTheStandard) {
  Gpu gpu(dnn_module(), {});
  EXPECT_EQ(dnn_calls([&] { test::check_dnn_layers(Precision::fp32, 1e-5, gpu); }), 0);
}

TEST(GpuDnnLayers, StatisticsOfManyRanksAreOwn) {
  class Alone final : public StatisticsReducer {
   public:
    void sum(std::span<double> /*values*/) override {}
  };
  Alone reducer;
  Gpu gpu(dnn_module(), by(LayerEngine::either));
  for (const NormKind kind : {NormKind::sync_batch, NormKind::group}) {
    const auto layer = test::norm_case("other", kind, {4, 4, 8}, {3}, false,
                                       kind == NormKind::group ? nullptr : &reducer);
    EXPECT_EQ(dnn_calls([&] { test::check_layer_case(layer, Precision::fp32, 1e-5, gpu); }), 0);
  }
}

/// What a layer's first batch throws.
std::string refusal(const test::LayerCase& layer, Precision precision, Gpu& gpu) {
  ModelOptions options;
  options.precision = precision;
  const auto factory = make_gpu_factory(options, gpu);
  const auto made = layer.make(*factory);
  const test::LayerOperands operands(*made, layer.samples.front(), layer.addend, precision);
  try {
    static_cast<void>(test::run_on_gpu(*made, operands, precision, gpu));
  } catch (const Error& error) {
    gpu.stream().synchronize();
    return error.what();
  }
  return "nothing was thrown";
}

TEST(GpuDnnLayers, RefusalsNameLayerShapeAndRemedy) {
  Gpu gpu(dnn_module(), by(LayerEngine::dnn));
  EXPECT_EQ(refusal(test::norm_case("odd", NormKind::batch, {4, 5, 12}, {3}), Precision::bf16, gpu),
            "cuda.norm = cudnn: layer norm over 3x4x5x12 (samples, height, width, channels) in "
            "bf16: the double wants whole 16 bytes of channels; allowed for it: own, or auto, "
            "which takes cuDNN for the layers that it computes");
  test::refuse_host_samples(3);
  const test::LayerCase pool{"pool", [](auto& f) { return f.global_average("mean", {4, 5, 8}); }};
  EXPECT_EQ(refusal(pool, Precision::fp32, gpu),
            "cuda.pool = cudnn: layer mean over 3x4x5x8 (samples, height, width, channels) in "
            "fp32: the double was told to refuse; allowed for it: own, or auto, which takes cuDNN "
            "for the layers that it computes");
  test::refuse_host_samples(0);
}

TEST(GpuDnnLayers, Repeat) {
  Gpu gpu(dnn_module(), by(LayerEngine::dnn));
  test::expect_layers_repeat(Precision::bf16, gpu);
}

TEST(GpuDnnLayers, AreRecordedInGraphs) {
  EXPECT_GT(dnn_calls([&] {
              test::expect_same_bits_with_graphs(dnn_module(), {test::dnn_graph_case()},
                                                 by(LayerEngine::dnn));
            }),
            0);
}

TEST(GpuDnnLayers, ModelsTrainAsTheCpusDo) {
  const ResNetPlan plan{true, true, 8, {1, 1}};
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    ModelOptions options;
    options.precision = precision;
    options.norm.kind = "batch";
    Gpu gpu(dnn_module(), by(LayerEngine::dnn));
    test::ModelPair pair(
        [&](LayerFactory& factory) {
          return build_resnet("small", plan, {24, 24, 3}, 10, options, factory);
        },
        options, gpu);
    pair.train(2, 1);
    // Norms over small batches enlarge rounding errors.
    pair.expect_same_results(precision == Precision::fp32 ? 1e-3 : 0.1);
    pair.expect_same_evaluation(2, precision == Precision::fp32 ? 1e-3 : 0.1);
  }
}

TEST(GpuDnnLayers, NotANumberStaysOne) {
  float running[] = {1.0F, 2.0F};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const kernels::RunningStatistics broken{&nan, &nan, running, 1, 4.0, 0.1, 1e-5};
  broken(0);
  EXPECT_TRUE(std::isnan(running[0]));
  EXPECT_TRUE(std::isnan(running[1]));
}

}  // namespace
}  // namespace paceline
