// SPDX-License-Identifier: Apache-2.0
// What the layers of a transformer are made with, and their tensors, whatever device computes them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/core/layer.h"

namespace paceline {

struct TransformerShape {
  std::int64_t positions = 0;   ///< of a sample
  std::int64_t width = 0;       ///< channels of a position
  std::int64_t heads = 0;       ///< divides width
  std::int64_t vocabulary = 0;  ///< tokens
};

/// Where a block's tensors begin: norms have γ, then β; linear maps weights [outputs, inputs], then
/// the bias.
template <typename Float>
struct BlockTensors {
  Float* norm1;
  Float* qkv;
  Float* projection;
  Float* norm2;
  Float* expand;
  Float* contract;

  BlockTensors(Float* at, std::int64_t width) {
    const auto next = [&at](std::int64_t elements) { return std::exchange(at, at + elements); };
    norm1 = next(2 * width);
    qkv = next(3 * width * (width + 1));
    projection = next(width * (width + 1));
    norm2 = next(2 * width);
    expand = next(4 * width * (width + 1));
    contract = next(width * (4 * width + 1));
  }
};

/// The same in order, with names.
[[nodiscard]] inline std::vector<ParameterSpec> block_parameters(const TransformerShape& shape) {
  const std::int64_t c = shape.width;
  return {{"norm1.weight", {c}, 1, 1.0F},         {"norm1.bias", {c}, 1, 0.0F},
          {"qkv.weight", {3 * c, c}, c},          {"qkv.bias", {3 * c}, c},
          {"projection.weight", {c, c}, c},       {"projection.bias", {c}, c},
          {"norm2.weight", {c}, 1, 1.0F},         {"norm2.bias", {c}, 1, 0.0F},
          {"expand.weight", {4 * c, c}, c},       {"expand.bias", {4 * c}, c},
          {"contract.weight", {c, 4 * c}, 4 * c}, {"contract.bias", {c}, 4 * c}};
}

/// Of one sample's forward.
[[nodiscard]] inline double block_flops(const TransformerShape& shape) {
  const auto t = static_cast<double>(shape.positions);
  const auto c = static_cast<double>(shape.width);
  return 2.0 * t * 12.0 * c * c + 4.0 * t * t * c;
}

[[nodiscard]] inline std::vector<ParameterSpec> embedding_parameters(
    const TransformerShape& shape) {
  constexpr std::int64_t kFanIn = 833;  // U(±1/√833) has GPT-2's standard deviation, 0.02
  return {{"token", {shape.vocabulary, shape.width}, kFanIn},
          {"position", {shape.positions, shape.width}, kFanIn}};
}

[[nodiscard]] inline std::vector<ParameterSpec> row_norm_parameters(std::int64_t width) {
  return {{"weight", {width}, 1, 1.0F}, {"bias", {width}, 1, 0.0F}};
}

}  // namespace paceline
