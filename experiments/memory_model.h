// SPDX-License-Identifier: Apache-2.0
// The model that `paceline memory` asks what its activations will take: of the CPU's layers, or
// with device=cuda of the GPU's, for which no GPU is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/config/config.h"
#include "common/core/cuda_module.h"
#include "common/core/gpu/gpu.h"
#include "common/core/model.h"

namespace paceline {

/// How a GPU's attention is planned.
struct PlannedAttention {
  bool fused = false;
  std::string why;  ///< one line without a full stop; empty where nothing was to decide
};

class PlannedModel {
 public:
  /// `real` is the module that a run would compute with. Where cuda.attention=auto leaves to the
  /// GPU whether a batch of `samples` is computed by fused attention, a usable one is asked, which
  /// takes seconds and some of its GPU's memory meanwhile; without one it is planned as not fused,
  /// which takes more.
  PlannedModel(const Config& config, SampleShape input, int classes, std::int64_t samples,
               const CudaModule& real);

  [[nodiscard]] const Model& model() const noexcept { return *model_; }
  [[nodiscard]] ActivationPlan activations(std::int64_t samples) const;
  /// Empty on the CPU, and where the model has none.
  [[nodiscard]] const std::optional<PlannedAttention>& attention() const noexcept {
    return attention_;
  }

 private:
  std::size_t element_bytes_ = sizeof(float);
  std::optional<PlannedAttention> attention_;
  std::unique_ptr<Gpu> gpu_;  ///< plans and computes nothing; ends after model_
  std::unique_ptr<Model> model_;
};

}  // namespace paceline
