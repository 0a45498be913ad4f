// SPDX-License-Identifier: Apache-2.0
// Causal attention on a GPU.
#pragma once

#include <cstdint>
#include <utility>

#include "common/core/gpu/gpu_layers.h"
#include "common/core/transformer_setup.h"

namespace paceline {

/// Of queries, keys and values that lie apart (kernels::HeadLayout), in all heads of the batch at
/// once. Every call queues its work.
class GpuAttention {
 public:
  GpuAttention(GpuContextPtr context, const TransformerShape& shape)
      : context_(std::move(context)), shape_(shape) {}

  /// Between [samples, positions, parts, width] and heads apart.
  void split(std::int64_t samples, std::int64_t parts, const float* together, float* apart) const;
  void join(std::int64_t samples, std::int64_t parts, const float* apart, float* together) const;

  /// P = softmax(q·kᵀ/√d), o = P·v. shares: P, [samples, heads, positions, positions]; out: apart.
  void forward(std::int64_t samples, const float* qkv, float* shares, float* out) const;
  /// dv = Pᵀ·do, dP = do·vᵀ, dS by the softmax, dq = dS·k, dk = dSᵀ·q
  void backward(std::int64_t samples, const float* qkv, const float* shares, const float* d_out,
                float* d_shares, float* d_qkv) const;

 private:
  [[nodiscard]] std::int64_t head_width() const noexcept { return shape_.width / shape_.heads; }
  [[nodiscard]] float scale() const noexcept;
  /// One of every head.
  [[nodiscard]] cuda::Matmul product(std::int64_t samples, std::int64_t rows, std::int64_t columns,
                                     std::int64_t inner) const;
  // Operands of `columns` columns as stored, their matrices dense.
  void set_a(cuda::Matmul& p, const float* a, std::int64_t columns, bool transposed) const;
  void set_b(cuda::Matmul& p, const float* b, std::int64_t columns, bool transposed) const;
  void set_c(cuda::Matmul& p, float* c, std::int64_t columns) const;
  /// Where queries, keys or values (0, 1, 2) begin.
  [[nodiscard]] const float* part(const float* qkv, std::int64_t samples, int which) const noexcept;
  [[nodiscard]] float* part(float* qkv, std::int64_t samples, int which) const noexcept {
    return const_cast<float*>(part(static_cast<const float*>(qkv), samples, which));
  }

  GpuContextPtr context_;
  TransformerShape shape_;
};

}  // namespace paceline
