// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "common/core/kernels_column_gradients.h"
#include "common/core/kernels_stored.h"

namespace paceline {

namespace {

/// For about `wanted_lanes` lanes where a part has `lanes`; parts have `least` rows or more.
std::int64_t parts_for(std::int64_t wanted_lanes, std::int64_t lanes, std::int64_t rows,
                       std::int64_t least) {
  const std::int64_t wanted = wanted_lanes / std::max<std::int64_t>(1, lanes);
  return std::max<std::int64_t>(1, std::min(wanted, (rows + least - 1) / least));
}

}  // namespace

kernels::ColumnParts cut_columns(std::int64_t slabs, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kLanes = 1 << 17;
  constexpr std::int64_t kLeastRows = 32;
  const std::int64_t padded = (columns + 31) / 32 * 32;
  return {slabs, rows, columns, parts_for(kLanes, slabs * padded, rows, kLeastRows)};
}

kernels::ColumnParts cut_elements(const kernels::ColumnParts& sums) {
  constexpr std::int64_t kLanes = 1 << 19;
  constexpr std::int64_t kLeastRows = 4 * kernels::kElementRows;
  const std::int64_t lanes = sums.slabs * sums.columns / kernels::kElementPack;
  return {sums.slabs, sums.rows, sums.columns, parts_for(kLanes, lanes, sums.rows, kLeastRows)};
}

void queue_relu_mask(const GpuContext& context, const Layer& layer, const BackwardPass& pass) {
  context.with_format([&]<typename T>(T) {
    const kernels::MaskedByRelu<T> masked{as_stored<T>(pass.output), as_stored<T>(pass.d_output)};
    context.gpu().each(pass.samples * layer.output_shape().elements(), masked, layer.name());
  });
}

const char* misaligned(std::initializer_list<const void*> tensors) noexcept {
  for (const void* tensor : tensors) {
    if (reinterpret_cast<std::uintptr_t>(tensor) % cuda::kLayerAlignment != 0) {
      return "its activations do not begin at multiples of 16 bytes";
    }
  }
  return nullptr;
}

bool computed_by_dnn(const GpuContext& context, LayerEngine engine, const char* obstacle,
                     const Layer& layer, std::int64_t samples, std::string_view key) {
  if (obstacle == nullptr) {
    return true;
  }
  if (engine != LayerEngine::dnn) {
    return false;
  }
  const SampleShape& in = layer.input_shape();
  throw Error(fmt::format(
      "{} = cudnn: layer {} over {}x{}x{}x{} (samples, height, width, channels) in {}: {}; allowed "
      "for it: own, or auto, which takes cuDNN for the layers that it computes",
      key, layer.name(), samples, in.height, in.width, in.channels,
      precision_name(context.format()), obstacle));
}

void queue_bias_gradient(GpuContext& context, const float* y, float* dy, float* bias,
                         std::int64_t rows, std::int64_t columns) {
  const kernels::ColumnParts cut = cut_columns(1, rows, columns);
  auto* const sums = context.scratch<float>(3, bias_scratch(rows, columns)[3]);
  context.with_format([&]<typename T>(T) {
    const kernels::ColumnBiasSums<T> part{as_stored<T>(y), as_stored<T>(dy), sums, cut};
    context.gpu().each(part.units(), part, "a bias's gradient");
  });
  context.gpu().rows(columns, kernels::MergedBias{sums, bias, cut}, "a bias's gradient");
}

ScratchAreas bias_scratch(std::int64_t rows, std::int64_t columns) {
  ScratchAreas areas{};
  areas[3] =
      static_cast<std::size_t>(cut_columns(1, rows, columns).parts * columns) * sizeof(float);
  return areas;
}

bool copies_filter(Precision format, const FilterShape& shape) noexcept {
  return format != Precision::fp32 || (shape.positions > 1 && shape.channels > 1);
}

const void* operand_filter(const GpuContext& context, const float* weights,
                           const FilterShape& shape, GpuMemory& copy) {
  if (!copies_filter(context.format(), shape)) {
    return weights;
  }
  context.grow(copy, static_cast<std::size_t>(shape.elements()) * context.element_bytes(),
               "weights as products take them");
  const std::int64_t rows = shape.positions > 1 ? shape.channels : 1;
  const std::int64_t columns = shape.positions > 1 ? shape.positions : shape.channels;
  context.with_format([&]<typename T>(T) {
    context.gpu().each(shape.elements(),
                       kernels::Transposed<float, T>{weights, copy.as<T>(), rows, columns},
                       "copying weights");
  });
  return copy.as();
}

}  // namespace paceline
