// SPDX-License-Identifier: Apache-2.0
// Steps of a transformer's layers on a GPU. Activations are of the context's format, weights and
// gradients fp32; every call queues its work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_parts.h"

namespace paceline {

/// Hands out the parts of a block of device memory, each aligned as cudaMalloc's, or only counts
/// them while there is none.
class DeviceParts {
 public:
  explicit DeviceParts(std::byte* next = nullptr) : next_(next) {}
  [[nodiscard]] float* take(std::size_t bytes);
  [[nodiscard]] float* take(std::int64_t elements, std::size_t element_bytes) {
    return take(static_cast<std::size_t>(elements) * element_bytes);
  }
  [[nodiscard]] std::size_t total() const noexcept { return total_; }

 private:
  std::byte* next_;
  std::size_t total_ = 0;
};

/// One product of the context's format, its shape set and all else zero: batch 1, alpha 1.
[[nodiscard]] cuda::Matmul plain_product(const GpuContext& context, std::int64_t rows,
                                         std::int64_t columns, std::int64_t inner);
void queue_product(const GpuContext& context, const cuda::Matmul& product, std::string_view what);

/// A linear map of every row: weights [outputs, inputs], then the bias.
class GpuRowLinear {
 public:
  GpuRowLinear(GpuContextPtr context, std::string_view name, std::int64_t inputs,
               std::int64_t outputs)
      : context_(std::move(context)), name_(name), inputs_(inputs), outputs_(outputs) {}

  /// y = x·Wᵀ + b (+ y with `accumulate`)
  void forward(std::int64_t rows, const float* weights, const float* x, float* y,
               bool accumulate = false);
  /// dW = dyᵀ·x, db = Σ dy, dx = dy·W with the weights of forward. Takes scratch area 3.
  void backward(std::int64_t rows, const float* x, float* dy, float* dx, float* gradients) const;

  [[nodiscard]] std::size_t held_bytes() const noexcept { return copy_.size(); }
  [[nodiscard]] std::size_t planned_bytes() const noexcept;
  [[nodiscard]] ScratchAreas planned_scratch(std::int64_t rows) const {
    return bias_scratch(rows, outputs_);
  }

 private:
  GpuContextPtr context_;
  std::string_view name_;
  std::int64_t inputs_;
  std::int64_t outputs_;
  GpuMemory copy_;
  const void* weight_ = nullptr;  // what products multiply, from forward to backward
};

/// γ, then β, of a norm of rows, and its statistics.
struct GpuRowNorm {
  const float* gamma;
  float* mean;  ///< [rows], as inverse
  float* inverse;
};

void queue_row_norm(const GpuContext& context, std::int64_t rows, std::int64_t width,
                    const GpuRowNorm& norm, const float* x, float* y);
/// dx = the norm's input gradient (+ addend), nothing where it is null; `gradients` gets dγ, then
/// dβ. Takes scratch area 3.
void queue_row_norm_gradient(GpuContext& context, std::int64_t rows, std::int64_t width,
                             const GpuRowNorm& norm, const float* x, const float* dy,
                             const float* addend, float* dx, float* gradients);
[[nodiscard]] ScratchAreas row_norm_scratch(std::int64_t rows, std::int64_t width);

}  // namespace paceline
