// SPDX-License-Identifier: Apache-2.0
// Steps that several of a GPU's layers take.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "common/core/gpu/gpu_context.h"
#include "common/core/kernels_columns.h"
#include "common/core/layer.h"

namespace paceline {

/// Cuts a batch so that a GPU which sums it has lanes enough, each with rows enough. The parts
/// decide the sums' last bits, so they follow from the extents alone.
[[nodiscard]] kernels::ColumnParts cut_columns(std::int64_t slabs, std::int64_t rows,
                                               std::int64_t columns);
/// The same batch in parts for what changes its elements: more of them, and no bit depends on it.
[[nodiscard]] kernels::ColumnParts cut_elements(const kernels::ColumnParts& sums);

/// Why cuDNN's batch norms and pools do not take these tensors (null ones aside), or null.
[[nodiscard]] const char* misaligned(std::initializer_list<const void*> tensors) noexcept;

/// Whether cuDNN computes a layer where `engine` is asked to; `obstacle` is cuDNN's reason why not,
/// null where there is none. Throws Error naming the layer, its shape for `samples`, the reason,
/// and what to set for `key` where engine is dnn and there is one.
[[nodiscard]] bool computed_by_dnn(const GpuContext& context, LayerEngine engine,
                                   const char* obstacle, const Layer& layer, std::int64_t samples,
                                   std::string_view key);

/// The layer's output gradient becomes 0 where its output, a ReLU's, is not above 0.
void queue_relu_mask(const GpuContext& context, const Layer& layer, const BackwardPass& pass);

/// dy [rows, columns] of the context's format: masked by y > 0 where there is a y, then
/// bias[c] = Σ dy. Takes scratch area 3.
void queue_bias_gradient(GpuContext& context, const float* y, float* dy, float* bias,
                         std::int64_t rows, std::int64_t columns);
[[nodiscard]] ScratchAreas bias_scratch(std::int64_t rows, std::int64_t columns);

/// Extents of a filter in the arena, [outputs, channels, positions].
struct FilterShape {
  std::int64_t outputs;
  std::int64_t positions;
  std::int64_t channels;
  [[nodiscard]] std::int64_t elements() const noexcept { return outputs * positions * channels; }
};

/// A filter as products take it, [outputs, positions, channels] in the context's format: `weights`
/// themselves where they are that already, else queued into `copy`.
[[nodiscard]] const void* operand_filter(const GpuContext& context, const float* weights,
                                         const FilterShape& shape, GpuMemory& copy);
/// Whether it is a copy.
[[nodiscard]] bool copies_filter(Precision format, const FilterShape& shape) noexcept;

}  // namespace paceline
