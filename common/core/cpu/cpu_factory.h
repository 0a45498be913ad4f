// SPDX-License-Identifier: Apache-2.0
// The layers of models on the CPU.
#pragma once

#include "common/core/cpu/layers.h"
#include "common/core/layer_factory.h"

namespace paceline {

class CpuFactory final : public LayerFactory {
 public:
  /// Where the processor lacks options.precision, products are computed in fp32 from values rounded
  /// to it.
  explicit CpuFactory(const ModelOptions& options);

  Made linear(std::string name, SampleShape input, std::int64_t outputs,
              Activation activation) override;
  Made flatten(std::string name, SampleShape input) override;
  Made conv2d(std::string name, SampleShape input, const ConvShape& shape, Activation activation,
              ReluMask mask) override;
  Made norm(std::string name, SampleShape input, const NormSetup& setup) override;
  Made max_pool(std::string name, SampleShape input, bool after_relu) override;
  Made window_max_pool(std::string name, SampleShape input, std::int64_t kernel,
                       std::int64_t stride, std::int64_t padding) override;
  Made global_average(std::string name, SampleShape input) override;
  std::shared_ptr<LayerStore> store() override;
  std::unique_ptr<Model> finish(std::string name, std::vector<Made> layers) override;

 private:
  ModelOptions options_;
  Precision operands_;
  std::shared_ptr<DnnlContext> context_;
};

/// Rounds to `precision` around each layer.
[[nodiscard]] std::shared_ptr<LayerStore> make_cpu_store(Precision precision);

}  // namespace paceline
