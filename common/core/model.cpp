// SPDX-License-Identifier: Apache-2.0
#include "common/core/model.h"

#include "common/core/cpu/cpu_factory.h"
#include "common/core/gpt.h"
#include "common/core/logistic.h"

namespace paceline {

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"softmax",  "mlp",      "cnn",      "resmlp",
                                              "resnet20", "resnet50", "logistic", "gpt"};
  return names;
}

std::unique_ptr<Model> make_model(std::string_view name, SampleShape input, int classes,
                                  const ModelOptions& options) {
  const ModelOptions own = checked_options(name, input, classes, options);
  if (name == "logistic") {
    return make_logistic(input.elements(), classes, own);
  }
  if (name == "gpt") {
    return make_gpt(input.elements(), classes, own);
  }
  CpuFactory factory(own);
  return build_model(name, input, classes, own, factory);
}

}  // namespace paceline
