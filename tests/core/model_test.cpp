// SPDX-License-Identifier: Apache-2.0
// Models as the trainer uses them: arena layout, hooks and what they promise, batch sizes,
// determinism, and the whole gradient against central differences in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "common/base/error.h"
#include "common/core/sequential.h"
#include "tests/core/inputs.h"
#include "tests/core/reference.h"

namespace paceline {
namespace {

constexpr float kJunk = std::numeric_limits<float>::quiet_NaN();

/// A model with weights, inputs and labels of its own.
struct Fixture {
  /// ResNets get small images: they have many passes over them.
  explicit Fixture(const char* name)
      : Fixture(name, std::string_view(name).starts_with("resnet") ? SampleShape{12, 12, 1}
                                                                   : SampleShape{28, 28, 1}) {}
  Fixture(const char* name, SampleShape shape, std::int64_t n = 9)
      : model(make_model(name, shape, 10)),
        samples(n),
        x(test::values(1, static_cast<std::size_t>(n * shape.elements()))),
        y(test::labels(2, static_cast<std::size_t>(n), 10)),
        weights(model->parameter_elements()),
        gradients(weights.size(), kJunk) {
    model->initialise(weights, 3);
  }
  [[nodiscard]] Batch part(std::int64_t begin, std::int64_t end) const {
    const auto width = static_cast<std::size_t>(model->input_shape().elements());
    const auto first = static_cast<std::size_t>(begin);
    const auto n = static_cast<std::size_t>(end - begin);
    return {std::span(x).subspan(first * width, n * width), std::span(y).subspan(first, n),
            end - begin};
  }
  BatchResult train(std::int64_t begin, std::int64_t end, LayerHooks* hooks = nullptr) {
    return model->train_batch(part(begin, end), weights, gradients, hooks);
  }
  BatchResult train() { return train(0, samples); }
  [[nodiscard]] Range layer_range(int layer) const {
    Range range{weights.size(), 0};
    for (const Parameter& p : model->parameters()) {
      if (p.layer == layer) {
        range = {std::min(range.begin, p.range.begin), std::max(range.end, p.range.end)};
      }
    }
    return range.begin <= range.end ? range : Range{};
  }

  std::unique_ptr<Model> model;
  std::int64_t samples;
  std::vector<float> x;
  std::vector<std::int32_t> y;
  std::vector<float> weights;
  std::vector<float> gradients;
};

class AnyModel : public testing::TestWithParam<const char*> {};
/// Models whose samples do not see each other: without BatchNorm.
class PlainModel : public AnyModel {};

TEST_P(AnyModel, LaysOutItsArenaInBackwardOrder) {
  const Fixture f(GetParam());
  std::size_t end = 0;
  int layer = f.model->layers();
  for (const Parameter& p : f.model->parameters()) {
    EXPECT_EQ(p.range.begin, end) << p.name;
    const auto elements =
        std::accumulate(p.shape.begin(), p.shape.end(), std::int64_t{1}, std::multiplies<>());
    EXPECT_EQ(p.range.size(), static_cast<std::size_t>(elements)) << p.name;
    EXPECT_LE(p.layer, layer) << p.name;
    EXPECT_TRUE(p.name.starts_with(std::string(f.model->layer_name(p.layer)) + ".")) << p.name;
    end = p.range.end;
    layer = p.layer;
  }
  EXPECT_EQ(end, f.model->parameter_elements());
}

TEST_P(PlainModel, SampledGradientMatchesCentralDifferences) {
  const SampleShape shape{8, 8, 2};
  Fixture f(GetParam(), shape, 3);
  const BatchResult result = f.train();
  const auto x = test::widen(f.x);
  auto w = test::widen(f.weights);
  const auto loss = [&] { return reference::model_loss<double>(GetParam(), shape, 10, x, f.y, w); };
  EXPECT_NEAR(result.loss_sum, loss(), 1e-5 * loss());
  for (const Parameter& p : f.model->parameters()) {
    SCOPED_TRACE(p.name);
    const auto gradient = std::span(f.gradients).subspan(p.range.begin, p.range.size());
    float top = 0.0F;
    for (const float g : gradient) {
      top = std::max(top, std::abs(g));
    }
    for (std::uint64_t k = 0; k < 12; ++k) {
      const std::size_t i = splitmix64(k) % gradient.size();
      double& variable = w[p.range.begin + i];
      const double kept = variable;
      variable = kept + 1e-5;
      const double above = loss();
      variable = kept - 1e-5;
      const double below = loss();
      variable = kept;
      ASSERT_NEAR(static_cast<double>(gradient[i]), (above - below) / 2e-5,
                  1e-5 * static_cast<double>(top))
          << "element " << i;
    }
  }
}

TEST_P(AnyModel, GivesTheSameBitsEveryTime) {
  Fixture f(GetParam());
  const BatchResult first = f.train();
  const std::vector<float> gradients = f.gradients;
  const std::size_t bytes = f.model->activation_bytes();
  EXPECT_GT(bytes, 0U);
  f.train(0, 4);  // another batch size, and an evaluation, in between
  static_cast<void>(f.model->evaluate_batch(f.part(0, 5), f.weights));
  std::ranges::fill(f.gradients, kJunk);
  const BatchResult again = f.train();
  EXPECT_EQ(first.loss_sum, again.loss_sum);
  EXPECT_EQ(f.gradients, gradients);
  Fixture other(GetParam());
  other.train();
  EXPECT_EQ(other.gradients, gradients);
}

TEST_P(AnyModel, GivesTheSameBitsWhenSeveralComputeAtOnce) {
  Fixture alone(GetParam());
  const double loss = alone.train().loss_sum;
  std::vector<std::vector<float>> gradients(3);
  std::vector<double> losses(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    threads.emplace_back([&, t] {
      Fixture f(GetParam());
      for (int step = 0; step < 5; ++step) {
        losses[t] = f.train().loss_sum;
      }
      gradients[t] = f.gradients;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    EXPECT_EQ(losses[t], loss);
    EXPECT_EQ(gradients[t], alone.gradients);
  }
}

TEST_P(PlainModel, SumsOverSamplesWhateverTheBatches) {
  Fixture f(GetParam());
  const BatchResult whole = f.train();
  const auto expected = test::widen(f.gradients);
  std::vector<float> sum(f.gradients.size());
  BatchResult parts;
  for (const auto& [begin, end] : {std::pair{0, 4}, std::pair{4, 5}, std::pair{5, 9}}) {
    const BatchResult part = f.train(begin, end);
    parts.loss_sum += part.loss_sum;
    parts.correct += part.correct;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += f.gradients[i];
    }
  }
  EXPECT_LE(test::relative_error(sum, expected), 1e-5);
  EXPECT_NEAR(parts.loss_sum, whole.loss_sum, 1e-5 * whole.loss_sum);
  EXPECT_EQ(parts.correct, whole.correct);
}

/// Notes the calls; also plays a backend that is as mean as the seam's rules allow: a layer's
/// weights are junk until it asks for them and again once its backward is over, and so are its
/// gradients.
class MeanHooks final : public LayerHooks {
 public:
  explicit MeanHooks(Fixture& fixture) : f_(fixture), kept_(fixture.weights) {
    std::ranges::fill(f_.weights, kJunk);
  }
  void before_forward(int layer) override {
    calls.push_back(layer);
    copy(kept_, f_.weights, f_.layer_range(layer));
  }
  void after_forward(int layer) override { calls.push_back(100 + layer); }
  void after_backward(int layer) override {
    calls.push_back(200 + layer);
    const Range range = f_.layer_range(layer);
    final_gradients.resize(f_.gradients.size());
    copy(f_.gradients, final_gradients, range);
    std::ranges::fill(std::span(f_.weights).subspan(range.begin, range.size()), kJunk);
    std::ranges::fill(std::span(f_.gradients).subspan(range.begin, range.size()), kJunk);
  }

  std::vector<int> calls;
  std::vector<float> final_gradients;

 private:
  static void copy(const std::vector<float>& from, std::vector<float>& to, const Range& range) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(range.begin), range.size(),
                to.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  Fixture& f_;
  std::vector<float> kept_;
};

std::vector<int> expected_calls(int layers) {
  std::vector<int> calls;
  for (int l = 0; l < layers; ++l) {
    calls.push_back(l);
    calls.push_back(100 + l);
  }
  for (int l = layers - 1; l >= 0; --l) {
    calls.push_back(200 + l);
  }
  return calls;
}

TEST_P(AnyModel, TouchesWeightsAndGradientsOnlyBetweenItsHooks) {
  Fixture f(GetParam());
  const double loss = f.train().loss_sum;
  const std::vector<float> gradients = f.gradients;
  MeanHooks hooks(f);
  EXPECT_EQ(f.train(0, f.samples, &hooks).loss_sum, loss);
  EXPECT_EQ(hooks.calls, expected_calls(f.model->layers()));
  EXPECT_EQ(hooks.final_gradients, gradients);
  EXPECT_TRUE(std::ranges::all_of(f.gradients, [](float g) { return std::isnan(g); }));
}

TEST_P(AnyModel, MakesZeroGradientsOfNoSamples) {
  Fixture f(GetParam());
  MeanHooks hooks(f);
  const BatchResult result = f.train(0, 0, &hooks);
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_EQ(result.correct, 0);
  EXPECT_EQ(hooks.calls, expected_calls(f.model->layers()));
  EXPECT_EQ(hooks.final_gradients, std::vector<float>(f.weights.size(), 0.0F));
  EXPECT_EQ(f.model->evaluate_batch(f.part(0, 0), f.weights).loss_sum, 0.0);
}

TEST_P(PlainModel, EvaluatesAsItTrains) {
  Fixture f(GetParam(), {28, 28, 1}, 150);
  const BatchResult trained = f.train();
  const BatchResult evaluated = f.model->evaluate_batch(f.part(0, f.samples), f.weights);
  EXPECT_NEAR(evaluated.loss_sum, trained.loss_sum, 1e-5 * trained.loss_sum);
  EXPECT_EQ(evaluated.correct, trained.correct);
  // Whatever has been trained before, and with however large batches.
  Fixture fresh(GetParam(), {28, 28, 1}, 150);
  EXPECT_EQ(fresh.model->evaluate_batch(fresh.part(0, 150), fresh.weights).loss_sum,
            evaluated.loss_sum);
}

/// Running statistics are those of training, whatever the parts; the last part is smaller than 4.
TEST_P(AnyModel, EvaluatesAlikeInPartsOfAnySize) {
  std::vector<BatchResult> results;
  for (const std::int64_t samples : {std::int64_t{64}, std::int64_t{4}, std::int64_t{1}}) {
    Fixture f(GetParam());
    f.model = make_model(GetParam(), f.model->input_shape(), 10, {.evaluation_samples = samples});
    f.train();
    results.push_back(f.model->evaluate_batch(f.part(0, f.samples), f.weights));
  }
  for (const BatchResult& result : results) {
    EXPECT_NEAR(result.loss_sum, results[0].loss_sum, 1e-6 * results[0].loss_sum);
    EXPECT_EQ(result.correct, results[0].correct);
  }
}

TEST_P(AnyModel, EvaluatesInTheMemoryOfATrainingBatch) {
  Config config;
  config.model = GetParam();
  config.train.batch = 2;
  Fixture f(GetParam());
  f.model = make_model(GetParam(), f.model->input_shape(), 10, model_options(config, 0, nullptr));
  f.train(0, 2);
  const std::size_t bytes = f.model->activation_bytes();
  static_cast<void>(f.model->evaluate_batch(f.part(0, 9), f.weights));
  EXPECT_EQ(f.model->activation_bytes(), bytes);
}

TEST_P(AnyModel, KeepsItsMemoryOnceItHasSeenTheLargestBatch) {
  Fixture f(GetParam());
  f.train();
  f.train(0, 1);
  static_cast<void>(f.model->evaluate_batch(f.part(0, 9), f.weights));
  const std::size_t bytes = f.model->activation_bytes();
  for (int step = 0; step < 3; ++step) {
    f.train();
    f.train(0, 1);
    static_cast<void>(f.model->evaluate_batch(f.part(0, 9), f.weights));
  }
  EXPECT_EQ(f.model->activation_bytes(), bytes);
}

TEST_P(AnyModel, NeverFallsBackToReferenceCode) {
  Fixture f(GetParam());
  f.train();
  f.train(0, 1);
  f.train(0, 7);
  const auto& model = dynamic_cast<const Sequential&>(*f.model);
  const std::vector<std::string> names = model.implementations();
  EXPECT_GE(names.size(), 3U);
  for (const std::string& name : names) {
    EXPECT_EQ(name.find("ref"), std::string::npos) << name;
  }
}

TEST_P(PlainModel, InitialisesFromTheSeedAlone) {
  Fixture f(GetParam());
  std::vector<float> again(f.weights.size());
  std::vector<float> other(f.weights.size());
  f.model->initialise(again, 3);
  f.model->initialise(other, 4);
  EXPECT_EQ(again, f.weights);
  EXPECT_NE(other, f.weights);
  for (const Parameter& p : f.model->parameters()) {
    const auto values = std::span(f.weights).subspan(p.range.begin, p.range.size());
    const double inputs =
        static_cast<double>(f.layer_range(p.layer).size()) / static_cast<double>(p.shape[0]) - 1.0;
    const double bound = 1.0 / std::sqrt(inputs);
    const double top =
        static_cast<double>(std::ranges::max(values, {}, [](float v) { return std::abs(v); }));
    EXPECT_LE(std::abs(top), bound * (1 + 1e-6)) << p.name;
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    const auto n = static_cast<double>(values.size());
    EXPECT_LE(std::abs(sum / n), 4 * bound / std::sqrt(3 * n)) << p.name;  // four deviations
  }
}

TEST_P(AnyModel, RefusesBatchesThatDoNotFit) {
  Fixture f(GetParam());
  f.y[4] = 10;
  EXPECT_THROW(f.train(), Error);
  EXPECT_NO_THROW(f.train(0, 4));
  f.y[4] = -1;
  EXPECT_THROW(f.train(), Error);
  f.y[4] = 0;
  const Batch batch = f.part(0, 9);
  EXPECT_THROW(f.model->train_batch({batch.inputs.first(9), batch.labels, 9}, f.weights,
                                    f.gradients, nullptr),
               Error);
  EXPECT_THROW(f.model->train_batch(batch, std::span(f.weights).subspan(1), f.gradients, nullptr),
               Error);
  EXPECT_THROW(f.model->train_batch(batch, f.weights, std::span(f.gradients).subspan(1), nullptr),
               Error);
}

/// ResNet-50 is left out: resnet_test has its parts in a smaller size. So are logistic and gpt,
/// which take no images: logistic_test, gpt_test.
std::vector<const char*> names_of_models(bool plain) {
  std::vector<const char*> names;
  for (const std::string& name : model_names()) {
    if (name != "resnet50" && name != "logistic" && name != "gpt" &&
        !(plain && name == "resnet20")) {
      names.push_back(name.c_str());
    }
  }
  return names;
}

std::string name_of_case(const testing::TestParamInfo<const char*>& tested) {
  return tested.param;
}

INSTANTIATE_TEST_SUITE_P(Models, AnyModel, testing::ValuesIn(names_of_models(false)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Models, PlainModel, testing::ValuesIn(names_of_models(true)),
                         name_of_case);

TEST(Model, CountsFlops) {
  const auto cnn = make_model("cnn", {28, 28, 1}, 10);
  ASSERT_EQ(cnn->layers(), 6);
  EXPECT_DOUBLE_EQ(cnn->layer_flops(0), 2.0 * 26 * 26 * 32 * 9);
  EXPECT_DOUBLE_EQ(cnn->layer_flops(1), 2.0 * 24 * 24 * 64 * 32 * 9);
  EXPECT_DOUBLE_EQ(cnn->layer_flops(4), 2.0 * 9216 * 128);
  EXPECT_DOUBLE_EQ(cnn->layer_flops(5), 2.0 * 128 * 10);
  const auto mlp = make_model("mlp", {28, 28, 1}, 10);
  EXPECT_DOUBLE_EQ(mlp->layer_flops(0), 2.0 * 784 * 512);
  EXPECT_EQ(cnn->parameter_elements(), 1199882U);  // PyTorch's MNIST example
  EXPECT_EQ(mlp->parameter_elements(), 669706U);
}

TEST(Model, RefusesUnknownNamesAndSmallInputs) {
  EXPECT_THROW(static_cast<void>(make_model("resnet18", {28, 28, 1}, 10)), ConfigError);
  EXPECT_THROW(static_cast<void>(make_model("cnn", {5, 28, 1}, 10)), ConfigError);
  EXPECT_THROW(static_cast<void>(make_model("cnn", {4, 4, 1}, 10)), ConfigError);
  EXPECT_THROW(static_cast<void>(make_model("mlp", {28, 28, 1}, 0)), ConfigError);
  EXPECT_THROW(static_cast<void>(make_model("mlp", {28, 28, 1}, 10, {.threads = 0})), ConfigError);
  EXPECT_NO_THROW(static_cast<void>(make_model("cnn", {6, 7, 3}, 10)));
}

TEST(Model, TwoThreadsComputeWhatOneDoes) {
  Fixture one("cnn");
  one.train();
  Fixture two("cnn");
  two.model = make_model("cnn", {28, 28, 1}, 10, {.threads = 2});
  two.train();
  EXPECT_LE(test::relative_error(two.gradients, test::widen(one.gradients)), 1e-5);
}

/// Planned against counted bytes, without what oneDNN asks for itself.
void expect_planned(Model& model, const ModelOptions& options) {
  constexpr std::int64_t kSamples = 5;
  const auto inputs =
      test::values(1, static_cast<std::size_t>(kSamples * model.input_shape().elements()));
  const auto labels =
      test::labels(2, static_cast<std::size_t>(kSamples * model.positions()), model.classes());
  std::vector<float> weights(model.parameter_elements());
  std::vector<float> gradients(weights.size());
  model.initialise(weights, 3);
  const auto planned = static_cast<double>(model.plan_activations({kSamples}).total());
  model.train_batch({inputs, labels, kSamples}, weights, gradients, nullptr);
  const auto counted = static_cast<double>(model.activation_bytes() - model.unplanned_bytes());
  EXPECT_NEAR(planned / counted, 1.0, 0.03)
      << model.name() << ", norm " << options.norm.kind << ", precision "
      << precision_name(options.precision) << ": " << planned << " planned, " << counted;
}

TEST(PlannedActivations, AreThoseThatABatchTakes) {
  for (const char* name : {"softmax", "mlp", "cnn", "resmlp", "resnet20", "resnet50"}) {
    const bool resnet = std::string_view(name).starts_with("resnet");
    const SampleShape shape = resnet ? SampleShape{32, 32, 3} : SampleShape{28, 28, 1};
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      if (precision != Precision::fp32 && std::string_view(name) == "resnet50") continue;
      ModelOptions options;
      options.precision = precision;
      expect_planned(*make_model(name, shape, 10, options), options);
    }
  }
  ModelOptions options;
  options.norm.kind = "group";
  expect_planned(*make_model("cnn", {28, 28, 1}, 10, options), options);
  expect_planned(*make_model("gpt", {24, 1, 1}, 256, {}), {});
}

TEST(PlannedActivations, TakeHalfInSixteenBits) {
  ModelOptions options;
  options.precision = Precision::bf16;
  const auto model = make_model("resnet50", {224, 224, 3}, 1000, options);
  const ActivationPlan wide = model->plan_activations({256, 4});
  const ActivationPlan narrow = model->plan_activations({256, 2});
  EXPECT_EQ(narrow.outputs * 2, wide.outputs);
  EXPECT_EQ(narrow.gradients * 2, wide.gradients);
  EXPECT_NEAR(static_cast<double>(narrow.total()) / static_cast<double>(wide.total()), 0.5, 0.01);
  EXPECT_EQ(model->activation_bytes(), 0U) << "nothing was allocated";
}

}  // namespace
}  // namespace paceline
