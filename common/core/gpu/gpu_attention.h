// SPDX-License-Identifier: Apache-2.0
// Causal attention on a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_transformer_parts.h"
#include "common/core/transformer_setup.h"

namespace paceline {

/// Of all heads of a batch at once: fused, where the GPU's library computes that (cuda::MathApi,
/// for bf16 and fp16), else as two strided products with a softmax between them. Together are
/// tensors [samples, positions, parts, width]; products take them with heads apart
/// (kernels::HeadLayout). Every call queues its work.
class GpuAttention {
 public:
  GpuAttention(GpuContextPtr context, const TransformerShape& shape);

  /// From forward to backward; of the context's format but for statistics.
  struct Kept {
    float* qkv;       ///< fused together, else apart
    float* shares;    ///< fused: statistics, [samples, heads, positions] in fp32; else P, with
                      ///< another dimension of positions
    float* attended;  ///< together
  };
  /// Within one call; null where fused.
  struct Scratch {
    float* apart;    ///< [samples, positions, width]
    float* qkv;      ///< of all three
    float* squares;  ///< like P
  };
  [[nodiscard]] Kept lay_out(std::int64_t samples, bool fused, DeviceParts& parts) const;
  [[nodiscard]] Scratch lay_out_scratch(std::int64_t samples, bool fused, DeviceParts& parts) const;

  /// Why a batch's attention, with its gradient for `training`, is not fused; empty where it is.
  /// The first call for a size may take seconds.
  [[nodiscard]] std::string obstacle(std::int64_t samples, bool training) const;
  /// How the calls below compute: fused until a batch was that could not be.
  [[nodiscard]] bool fused() const noexcept { return fused_; }
  /// Whether they would for a batch of that size.
  [[nodiscard]] bool fuses(std::int64_t samples, bool training) const {
    return fused_ && obstacle(samples, training).empty();
  }
  /// Before a forward. Returns whether fused() changed, and with it what is kept.
  bool prepare(std::int64_t samples, bool training);

  /// Where queries, keys and values are to come, together: kept, or `wide` where that is scratch.
  [[nodiscard]] float* input(const Kept& kept, float* wide) const noexcept {
    return fused_ ? kept.qkv : wide;
  }
  /// P = softmax(q·kᵀ/√d), attended = P·v, of what input() holds.
  void forward(std::int64_t samples, const float* input, const Kept& kept,
               const Scratch& scratch) const;
  /// dv = Pᵀ·do, dP = do·vᵀ, dS by the softmax, dq = dS·k, dk = dSᵀ·q; d_attended and d_qkv are
  /// together.
  void backward(std::int64_t samples, const Kept& kept, const Scratch& scratch,
                const float* d_attended, float* d_qkv) const;

 private:
  [[nodiscard]] std::int64_t head_width() const noexcept { return shape_.width / shape_.heads; }
  [[nodiscard]] float scale() const noexcept;
  /// Why no batch is fused; null: some may be.
  [[nodiscard]] const char* obstacle_of_all() const noexcept;
  [[nodiscard]] cuda::Attention whole(std::int64_t samples) const noexcept;
  /// Between [samples, positions, parts, width] and heads apart.
  void split(std::int64_t samples, std::int64_t parts, const float* together, float* apart) const;
  void join(std::int64_t samples, std::int64_t parts, const float* apart, float* together) const;
  void forward_by_products(std::int64_t samples, const float* qkv, float* shares, float* out) const;
  void backward_by_products(std::int64_t samples, const float* qkv, const float* shares,
                            const float* d_out, float* d_shares, float* d_qkv) const;
  /// One of every head.
  [[nodiscard]] cuda::Matmul product(std::int64_t samples, std::int64_t rows, std::int64_t columns,
                                     std::int64_t inner) const;
  // Operands of `columns` columns as stored, their matrices dense.
  void set_a(cuda::Matmul& p, const float* a, std::int64_t columns, bool transposed) const;
  void set_b(cuda::Matmul& p, const float* b, std::int64_t columns, bool transposed) const;
  void set_c(cuda::Matmul& p, float* c, std::int64_t columns) const;
  /// Where queries, keys or values (0, 1, 2) begin, apart.
  [[nodiscard]] const float* part(const float* qkv, std::int64_t samples, int which) const noexcept;
  [[nodiscard]] float* part(float* qkv, std::int64_t samples, int which) const noexcept {
    return const_cast<float*>(part(static_cast<const float*>(qkv), samples, which));
  }

  GpuContextPtr context_;
  TransformerShape shape_;
  bool fused_;
};

}  // namespace paceline
