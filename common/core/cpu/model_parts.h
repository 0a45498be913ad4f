// SPDX-License-Identifier: Apache-2.0
// What the builders of models share: layers set up as ModelOptions say.
#pragma once

#include <memory>
#include <string>

#include "common/core/cpu/layers.h"
#include "common/core/cpu/norm.h"
#include "common/core/model_options.h"

namespace paceline {

/// Where the processor lacks a format, products are computed in fp32 from values rounded to it.
[[nodiscard]] inline std::shared_ptr<DnnlContext> make_model_context(const ModelOptions& options) {
  return make_dnnl_context(native_precision(options.precision) ? options.precision
                                                               : Precision::fp32);
}

/// options.norm.kind is one of batch, sync_batch, group, layer.
[[nodiscard]] inline NormSetup norm_setup(const ModelOptions& options, Activation activation,
                                          ReluMask mask) {
  const NormConfig& norm = options.norm;
  const NormKind kind = norm.kind == "batch"        ? NormKind::batch
                        : norm.kind == "sync_batch" ? NormKind::sync_batch
                        : norm.kind == "group"      ? NormKind::group
                                                    : NormKind::layer;
  return {kind, norm.groups, norm.momentum, activation, mask, options.reducer};
}

}  // namespace paceline
