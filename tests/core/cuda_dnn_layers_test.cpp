// SPDX-License-Identifier: Apache-2.0
// Batch norms and pools through cuDNN on a real GPU against the core on the CPU. A plan takes cuDNN
// about a second of the host, so the cases are few and share their Gpu. Without a GPU every case is
// skipped.
#include <gtest/gtest.h>

#include "tests/core/gpu_checks.h"
#include "tests/core/graph_checks.h"
#include "tests/core/on_gpu.h"

namespace paceline {
namespace {

using test::Cuda;

GpuOptions through_cudnn() {
  GpuOptions options;
  options.norm = LayerEngine::dnn;
  options.pool = LayerEngine::dnn;
  return options;
}

TEST_F(Cuda, LayersOfCudnnMatchTheCpusInFp32) {
  Gpu dnn(test::module_under_test(), through_cudnn());
  test::check_dnn_layers(Precision::fp32, 1e-4, dnn);
  test::expect_layers_repeat(Precision::fp32, dnn);
}

TEST_F(Cuda, LayersOfCudnnMatchTheCpusInBf16) {
  Gpu dnn(test::module_under_test(), through_cudnn());
  test::check_dnn_layers(Precision::bf16, 1e-2, dnn);
  test::expect_layers_repeat(Precision::bf16, dnn);
}

/// As in an arena whose classifier has ten biases.
TEST_F(Cuda, NormsOfCudnnTakeWeightsAnywhere) {
  Gpu dnn(test::module_under_test(), through_cudnn());
  const auto norm = test::norm_case("norm", NormKind::batch, {4, 4, 16}, {3}, true);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const double tolerance = precision == Precision::fp32 ? 1e-4 : 1e-2;
    test::check_layer_case(norm, precision, tolerance, dnn, {0, 0, 2});
  }
}

TEST_F(Cuda, LayersOfCudnnAreRecordedInGraphs) {
  test::expect_same_bits_with_graphs(test::module_under_test(), {test::dnn_graph_case()},
                                     through_cudnn());
}

/// What was chosen at first computes all the later batches, recorded or not.
TEST_F(Cuda, TunedConvolutionsAreRecordedInGraphs) {
  GpuOptions options = through_cudnn();
  options.tune = true;
  options.graphs = true;
  Gpu gpu(test::module_under_test(), options);
  const test::GraphRun first = test::run_steps(gpu, test::dnn_graph_case());
  EXPECT_EQ(test::run_steps(gpu, test::dnn_graph_case()), first);
}

}  // namespace
}  // namespace paceline
