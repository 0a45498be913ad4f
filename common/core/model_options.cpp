// SPDX-License-Identifier: Apache-2.0
#include "common/core/model_options.h"

#include <fmt/format.h>

#include <cmath>

#include "common/base/error.h"
#include "common/core/model.h"

namespace paceline {

namespace {

void check_precision(const PrecisionConfig& config) {
  if (config.compute == "fp16" && config.loss_scale == "none") {
    throw ConfigError(
        "precision.compute = \"fp16\" with precision.loss_scale = \"none\": fp16 compute without "
        "loss scaling is refused, small gradients would become 0; allowed: auto, dynamic, fixed");
  }
  int exponent = 0;
  if (std::frexp(config.initial_scale, &exponent) != 0.5) {
    throw ConfigError(
        fmt::format("precision.initial_scale = {} must be a power of two, so that scaling is exact",
                    config.initial_scale));
  }
}

}  // namespace

ModelOptions model_options(const Config& config, int rank, StatisticsReducer* reducer) {
  ModelOptions options;
  options.threads = config.compute.threads;
  options.winograd = config.compute.winograd;
  options.norm = config.norm;
  options.precision = parse_precision(config.precision.compute);
  options.gpt = config.gpt;
  options.evaluation_samples = evaluation_samples(config.train.batch);
  options.drop_path = config.train.drop_path;
  options.seed = config.seed;
  options.rank = rank;
  options.reducer = reducer;
  return options;
}

ModelOptions structure_options(const Config& config) {
  ModelOptions options = model_options(config, 0, nullptr);
  if (config.device == "cuda") {
    options.precision = Precision::fp32;
  }
  return options;
}

void check_model_options(const Config& config) {
  check_precision(config.precision);
  // The layers themselves know what they refuse; this builds no primitives and no arenas.
  const SampleShape any =
      config.model == "gpt" ? SampleShape{config.data.context, 1, 1} : SampleShape{28, 28, 1};
  const int classes = config.model == "gpt" ? 256 : config.model == "logistic" ? 2 : 10;
  static_cast<void>(make_model(config.model, any, classes, structure_options(config)));
}

}  // namespace paceline
