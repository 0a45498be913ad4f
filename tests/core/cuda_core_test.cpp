// SPDX-License-Identifier: Apache-2.0
// The core on a real GPU against the core on the CPU; the cases are those that the host's double of
// the module runs everywhere (gpu_core_test.cpp). Without a GPU every case is skipped.
#include <gtest/gtest.h>

#include "common/core/resnet.h"
#include "tests/core/element_checks.h"
#include "tests/core/gpu_checks.h"
#include "tests/core/gpu_model_checks.h"
#include "tests/core/graph_checks.h"
#include "tests/core/on_gpu.h"

namespace paceline {
namespace {

using test::Cuda;

TEST_F(Cuda, LayersMatchTheCpus) {
  test::check_layers(Precision::fp32, 1e-4, gpu());
  test::check_layers(Precision::bf16, 1e-2, gpu());
  test::check_layers(Precision::fp16, 1e-2, gpu());
}

TEST_F(Cuda, ElementsOfAnyNumberAndAlignmentMatchTheCpus) {
  test::check_all_elements(1e-5, gpu());
}

TEST_F(Cuda, BatchesOfAnySizeMatchTheCpus) {
  test::check_batch_sizes(Precision::fp32, 1e-4, gpu());
  test::check_batch_sizes(Precision::bf16, 2e-2, gpu());
  test::check_batch_sizes(Precision::fp16, 2e-2, gpu());
}

TEST_F(Cuda, FiftyStepsOfSmallModelsMatchTheCpus) {
  for (const test::SmallModel& model : test::small_models()) {
    test::check_trajectory(model, 50, 1e-3, gpu());
  }
}

TEST_F(Cuda, ResNet20TrainsAsTheCpuDoes) {
  test::ModelPair pair("resnet20", {32, 32, 3}, 10, {}, gpu());
  pair.train(16, 1);
  pair.expect_same_results(1e-3);
  pair.expect_same_evaluation(70, 1e-3);
}

TEST_F(Cuda, GraphsGiveTheBitsOfPlainSteps) {
  test::expect_same_bits_with_graphs(test::module_under_test());
}

}  // namespace
}  // namespace paceline
