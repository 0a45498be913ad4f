// SPDX-License-Identifier: Apache-2.0
// Times the training core alone, one process and one thread: gather, forward, backward and update
// over Fashion-MNIST (or made-up data), without any synchronisation. Prints one JSON line.
//   paceline_bench_core MODEL [STEPS [BATCH [FOLDER [PRECISION [NORM]]]]]   (FOLDER "": made up)
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/core/model.h"
#include "common/core/optimizer.h"
#include "common/data/dataset.h"
#include "common/data/sampler.h"

namespace paceline {
namespace {

constexpr std::int64_t kWarmupSteps = 10;
constexpr float kLearningRate = 0.05F;

struct Options {
  std::string model = "cnn";
  std::int64_t steps = 300;
  std::int64_t batch = 64;
  std::string folder;
  std::string precision = "fp32";
  std::string norm = "auto";
};

ModelOptions model_options(const Options& options) {
  ModelOptions result;
  result.precision = parse_precision(options.precision);
  result.norm.kind = options.norm;
  return result;
}

/// Seconds spent in each part of a step, and what came of it.
struct Totals {
  double gather = 0.0;
  double train = 0.0;
  double update = 0.0;
  double loss = 0.0;
  std::int64_t samples = 0;
};

class Loop {
 public:
  Loop(const Options& options, const Dataset& data)
      : data_(data),
        model_(make_model(options.model, data.shape(), data.classes(), model_options(options))),
        sampler_(data.size(), (options.steps + kWarmupSteps) * options.batch, options.batch, 1, 0,
                 1),
        weights_(model_->parameter_elements() * sizeof(float)),
        gradients_(model_->parameter_elements() * sizeof(float)),
        optimizer_({.momentum = 0.9F}, model_->parameter_elements()),
        inputs_(static_cast<std::size_t>(options.batch * data.shape().elements())),
        labels_(static_cast<std::size_t>(options.batch)) {
    model_->initialise(weights_.as<float>(), 1);
  }

  [[nodiscard]] std::int64_t steps() const { return sampler_.steps(); }
  [[nodiscard]] std::size_t activation_bytes() const { return model_->activation_bytes(); }

  void step(std::int64_t t, Totals& totals) {
    const std::int64_t begin = now_ns();
    const SampleSlice slice = sampler_.at(t);
    const std::size_t n = slice.indices.size();
    const std::span inputs =
        std::span(inputs_).first(n * static_cast<std::size_t>(data_.shape().elements()));
    const std::span labels = std::span(labels_).first(n);
    data_.gather(slice.indices, inputs, labels);
    const std::int64_t gathered = now_ns();
    const BatchResult result =
        model_->train_batch({inputs, labels, static_cast<std::int64_t>(n)}, weights_.as<float>(),
                            gradients_.as<float>(), nullptr);
    const std::int64_t trained = now_ns();
    optimizer_.apply(0, weights_.as<float>(), weights_.as<float>(), gradients_.as<float>(),
                     {t, kLearningRate, 1.0F / static_cast<float>(n)});
    totals.gather += seconds(gathered - begin);
    totals.train += seconds(trained - gathered);
    totals.update += seconds(now_ns() - trained);
    totals.loss = result.loss_sum / static_cast<double>(n);
    totals.samples += static_cast<std::int64_t>(n);
  }

  [[nodiscard]] double accuracy(const Dataset& test) {
    std::vector<std::uint32_t> indices(static_cast<std::size_t>(test.size()));
    for (std::uint32_t i = 0; i < indices.size(); ++i) {
      indices[i] = i;
    }
    std::vector<float> inputs(static_cast<std::size_t>(test.size() * test.shape().elements()));
    std::vector<std::int32_t> labels(indices.size());
    test.gather(indices, inputs, labels);
    const BatchResult result =
        model_->evaluate_batch({inputs, labels, test.size()}, weights_.as<float>());
    return static_cast<double>(result.correct) / static_cast<double>(test.size());
  }

 private:
  const Dataset& data_;
  std::unique_ptr<Model> model_;
  Sampler sampler_;
  Buffer weights_;
  Buffer gradients_;
  Optimizer optimizer_;
  std::vector<float> inputs_;
  std::vector<std::int32_t> labels_;
};

std::unique_ptr<Dataset> load(const Options& options, Split split) {
  if (options.folder.empty()) {
    const bool cifar = options.model == "resnet20";
    return make_synthetic(split == Split::train ? 10000 : 1000,
                          cifar ? SampleShape{32, 32, 3} : SampleShape{28, 28, 1}, 10, 1, split);
  }
  return load_fashion_mnist(options.folder, split, 0);
}

void run(const Options& options) {
  const auto train = load(options, Split::train);
  const auto test = load(options, Split::test);
  Loop loop(options, *train);
  Totals totals;
  for (std::int64_t t = 0; t < loop.steps(); ++t) {
    if (t == kWarmupSteps) {
      totals = {};
    }
    loop.step(t, totals);
  }
  const double all = totals.gather + totals.train + totals.update;
  const auto steps = static_cast<double>(loop.steps() - kWarmupSteps);
  fmt::print(
      "{{\"peer\": \"paceline-core\", \"model\": \"{}\", \"precision\": \"{}\", "
      "\"norm\": \"{}\", \"batch\": {}, \"samples\": {}, "
      "\"samples_per_second\": {:.1f}, \"gather_ms\": {:.4f}, \"train_ms\": {:.4f}, "
      "\"update_ms\": {:.4f}, \"last_loss\": {:.4f}, \"test_accuracy\": {:.4f}, "
      "\"activation_bytes\": {}}}\n",
      options.model, options.precision, options.norm, options.batch, totals.samples,
      static_cast<double>(totals.samples) / all, 1e3 * totals.gather / steps,
      1e3 * totals.train / steps, 1e3 * totals.update / steps, totals.loss, loop.accuracy(*test),
      loop.activation_bytes());
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    paceline::Options options;
    if (!arguments.empty()) options.model = arguments[0];
    if (arguments.size() > 1) options.steps = std::stoll(arguments[1]);
    if (arguments.size() > 2) options.batch = std::stoll(arguments[2]);
    if (arguments.size() > 3) options.folder = arguments[3];
    if (arguments.size() > 4) options.precision = arguments[4];
    if (arguments.size() > 5) options.norm = arguments[5];
    paceline::run(options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "paceline_bench_core: {}\n", error.what());
    return 1;
  }
}
