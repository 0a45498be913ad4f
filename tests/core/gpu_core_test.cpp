// SPDX-License-Identifier: Apache-2.0
// The core on a GPU, computed by the host's double of the module, against the core on the CPU.
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/core/resnet.h"
#include "common/core/statistics_reducer.h"
#include "tests/core/element_checks.h"
#include "tests/core/gpu_checks.h"
#include "tests/core/gpu_model_checks.h"
#include "tests/support/host_module.h"

namespace paceline {
namespace {

using test::ModelPair;

const CudaModule& core_module() {
  static const CudaModule module(test::host_module());
  return module;
}

/// Whatever a test allocated on the device is freed at its end.
class GpuCore : public testing::Test {
 protected:
  void SetUp() override { before_ = test::host_module_bytes(); }
  void TearDown() override { EXPECT_EQ(test::host_module_bytes(), before_); }

 private:
  std::size_t before_ = 0;
};

class GpuCoreFormats : public GpuCore, public testing::WithParamInterface<Precision> {};

TEST_P(GpuCoreFormats, LayersMatchTheCpus) {
  Gpu gpu(core_module(), {});
  test::check_layers(GetParam(), GetParam() == Precision::fp32 ? 1e-5 : 1e-2, gpu);
}

ModelOptions options_in(Precision precision) {
  ModelOptions options;
  options.precision = precision;
  return options;
}

TEST_P(GpuCoreFormats, BatchesOfAnySizeMatchTheCpus) {
  Gpu gpu(core_module(), {});
  test::check_batch_sizes(GetParam(), GetParam() == Precision::fp32 ? 1e-4 : 1e-2, gpu);
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuCoreFormats,
                         testing::Values(Precision::fp32, Precision::bf16, Precision::fp16),
                         [](const auto& tested) {
                           return std::string(precision_name(tested.param));
                         });

TEST_F(GpuCore, ElementsOfAnyNumberAndAlignmentMatchTheCpus) {
  Gpu gpu(core_module(), {});
  test::check_all_elements(1e-6, gpu);
}

TEST_F(GpuCore, SmallModelsTrainAsTheCpusDo) {
  Gpu gpu(core_module(), {});
  for (const test::SmallModel& model : test::small_models()) {
    test::check_trajectory(model, 5, 1e-4, gpu);
  }
}

TEST_F(GpuCore, ResNet20TrainsAsTheCpuDoes) {
  Gpu gpu(core_module(), {});
  ModelPair pair("resnet20", {8, 8, 3}, 10, {}, gpu);
  pair.expect_same_structure();
  pair.train(3, 1);
  pair.expect_same_results(1e-3);  // twenty norms over small batches enlarge rounding errors
  pair.expect_same_evaluation(2, 1e-3);
}

TEST_F(GpuCore, BottlenecksTrainAsTheCpusDo) {
  const ResNetPlan plan{true, true, 4, {1, 1}};
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    ModelOptions options = options_in(precision);
    options.norm.kind = "batch";
    Gpu gpu(core_module(), {});
    ModelPair pair(
        [&](LayerFactory& factory) {
          return build_resnet("small", plan, {24, 24, 3}, 10, options, factory);
        },
        options, gpu);
    pair.expect_same_structure();
    pair.train(2, 1);
    // Norms over small batches enlarge rounding errors.
    pair.expect_same_results(precision == Precision::fp32 ? 1e-3 : 0.1);
  }
}

TEST_F(GpuCore, ResNet50HasTheCpusStructure) {
  Gpu gpu(core_module(), {});
  const ModelOptions options = options_in(Precision::bf16);
  const auto device = make_gpu_model("resnet50", {224, 224, 3}, 1000, options, gpu);
  const auto cpu = make_model("resnet50", {224, 224, 3}, 1000, options);
  test::expect_same_structure(*device, *cpu);
}

/// Two ranks with the same samples.
class TwiceReducer final : public StatisticsReducer {
 public:
  void sum(std::span<double> values) override {
    ++calls;
    for (double& value : values) {
      value *= 2.0;
    }
  }
  int calls = 0;
};

TEST_F(GpuCore, SharesStatisticsOverRanks) {
  TwiceReducer reducer;
  Gpu gpu(core_module(), {});
  test::check_layer_case(
      test::norm_case("sync", NormKind::sync_batch, {4, 4, 6}, {3, 2}, false, &reducer),
      Precision::fp32, 1e-5, gpu);
  ModelOptions options;
  options.norm.kind = "sync_batch";
  options.reducer = &reducer;
  ModelPair pair("mlp", {2, 2, 1}, 10, options, gpu);
  EXPECT_TRUE(pair.device().collective());
  for (const std::int64_t samples : {4, 0, 3}) {
    SCOPED_TRACE(samples);
    pair.train(samples, 5);
    pair.expect_same_results(1e-4);
  }
}

TEST_F(GpuCore, ResultsAreTakenInTheOrderOfTheirBatches) {
  Gpu gpu(core_module(), {});
  ModelPair pair("softmax", {2, 2, 1}, 3, {}, gpu);
  Model& model = pair.device();
  ASSERT_TRUE(model.asynchronous());
  EXPECT_THROW(static_cast<void>(model.take_result()), Error) << "no batch yet";
  const auto train = [&](std::int64_t samples) {
    const auto x = test::values(1, static_cast<std::size_t>(4 * samples));
    const auto y = test::labels(1, static_cast<std::size_t>(samples), 3);
    static_cast<void>(model.train_batch({x, y, samples}, pair.device_weights(),
                                        pair.device_gradients(), nullptr));
  };
  for (int round = 0; round < 3; ++round) {
    for (const std::int64_t samples : {1, 8, 64, 0}) {
      train(samples);
    }
    EXPECT_THROW(train(1), Error) << "four are open";
    double before = 0.0;
    for (int i = 0; i < 3; ++i) {
      const BatchResult result = model.take_result();
      EXPECT_GT(result.loss_sum, 2.0 * before);
      before = result.loss_sum;
    }
    EXPECT_EQ(model.take_result().loss_sum, 0.0);
  }
}

/// What is written to the host's copy of running statistics holds from the next batch on.
TEST_F(GpuCore, BuffersTakeWhatIsWrittenToThem) {
  Gpu gpu(core_module(), {});
  ModelPair pair(
      "mlp", {2, 2, 1}, 10,
      [] {
        ModelOptions options;
        options.norm.kind = "batch";
        return options;
      }(),
      gpu);
  pair.train(4, 1);
  pair.expect_same_results(1e-4);
  for (Model* model : {&pair.cpu(), &pair.device()}) {
    for (float& value : model->buffers()) {
      value = 2.0F * value + 1.0F;
    }
  }
  pair.expect_same_evaluation(6, 1e-4);
  pair.train(3, 2);
  pair.expect_same_results(1e-4);
}

class RecordingHooks final : public LayerHooks {
 public:
  void before_forward(int layer) override { calls += "f" + std::to_string(layer); }
  void after_forward(int layer) override { calls += "-" + std::to_string(layer); }
  void after_backward(int layer) override { calls += "b" + std::to_string(layer); }
  std::string calls;
};

TEST_F(GpuCore, CallsHooksAsTheCpuDoes) {
  ModelOptions options;
  options.drop_path = 0.5;
  Gpu gpu(core_module(), {});
  ModelPair pair("resmlp", {1, 1, 4}, 3, options, gpu);
  const auto x = test::values(1, 8);
  const auto y = test::labels(1, 2, 3);
  std::vector<float> gradients(pair.gradients().size());
  std::vector<float> weights(gradients.size());
  for (int step = 0; step < 4; ++step) {
    RecordingHooks one;
    RecordingHooks other;
    pair.cpu().begin_step(step);
    pair.device().begin_step(step);
    static_cast<void>(pair.cpu().train_batch({x, y, 2}, weights, gradients, &one));
    static_cast<void>(pair.device().train_batch({x, y, 2}, pair.device_weights(),
                                                pair.device_gradients(), &other));
    EXPECT_EQ(other.calls, one.calls);
    static_cast<void>(pair.device().take_result());
  }
}

TEST_F(GpuCore, PlansWhatItHolds) {
  for (const Precision precision : {Precision::fp32, Precision::fp16}) {
    for (const char* name : {"cnn", "resnet20", "resmlp"}) {
      Gpu gpu(core_module(), {});
      ModelPair pair(name, {8, 8, 1}, 10, options_in(precision), gpu);
      const ActivationPlan plan = pair.device().plan_activations({2, stored_bytes(precision)});
      pair.train(2, 1, 1.0F);
      pair.train(2, 2, 1.0F);
      EXPECT_EQ(pair.device().activation_bytes() - pair.device().unplanned_bytes(), plan.total())
          << name << " " << precision_name(precision);
    }
  }
}

TEST_F(GpuCore, RefusesModelsOfTheCpuAndBadBatches) {
  Gpu gpu(core_module(), {});
  EXPECT_THROW(static_cast<void>(make_gpu_model("logistic", {1, 1, 4}, 2, {}, gpu)), ConfigError);
  EXPECT_THROW(static_cast<void>(make_gpu_model("mlpp", {1, 1, 4}, 2, {}, gpu)), ConfigError);
  ModelPair pair("softmax", {2, 2, 1}, 3, {}, gpu);
  const std::vector<float> x(4);
  const std::vector<std::int32_t> y{3};
  EXPECT_THROW(static_cast<void>(pair.device().train_batch({x, y, 1}, pair.device_weights(),
                                                           pair.device_gradients(), nullptr)),
               Error)
      << "the label is none of the classes";
}

}  // namespace
}  // namespace paceline
