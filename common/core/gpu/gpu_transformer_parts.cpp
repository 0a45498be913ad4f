// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_transformer_parts.h"

#include <utility>

#include "common/core/kernels_norm.h"
#include "common/core/kernels_sequence.h"
#include "common/core/kernels_transformer.h"

namespace paceline {

float* DeviceParts::take(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  total_ += padded;
  return next_ == nullptr ? nullptr
                          : reinterpret_cast<float*>(std::exchange(next_, next_ + padded));
}

cuda::Matmul plain_product(const GpuContext& context, std::int64_t rows, std::int64_t columns,
                           std::int64_t inner) {
  cuda::Matmul product{};
  product.format = context.format();
  product.rows = rows;
  product.columns = columns;
  product.inner = inner;
  product.batch = 1;
  product.alpha = 1.0F;
  return product;
}

void queue_product(const GpuContext& context, const cuda::Matmul& product, std::string_view what) {
  Gpu& gpu = context.gpu();
  gpu.check(context.math().matmul(gpu.math(), &product), what);
}

void GpuRowLinear::forward(std::int64_t rows, const float* weights, const float* x, float* y,
                           bool accumulate) {
  weight_ = operand_filter(*context_, weights, {outputs_, 1, inputs_}, copy_);
  cuda::Matmul product = plain_product(*context_, rows, outputs_, inputs_);
  product.a = x;
  product.a_stride = inputs_;
  product.b = weight_;
  product.b_transposed = 1;
  product.b_stride = inputs_;
  product.c = y;
  product.c_stride = outputs_;
  product.beta = accumulate ? 1.0F : 0.0F;
  product.bias = weights + outputs_ * inputs_;
  product.epilogue = cuda::Epilogue::bias;
  queue_product(*context_, product, name_);
}

void GpuRowLinear::backward(std::int64_t rows, const float* x, float* dy, float* dx,
                            float* gradients) const {
  queue_bias_gradient(*context_, nullptr, dy, gradients + outputs_ * inputs_, rows, outputs_);
  cuda::Matmul weights = plain_product(*context_, outputs_, inputs_, rows);
  weights.fp32_output = 1;
  weights.a = dy;
  weights.a_transposed = 1;
  weights.a_stride = outputs_;
  weights.b = x;
  weights.b_stride = inputs_;
  weights.c = gradients;
  weights.c_stride = inputs_;
  queue_product(*context_, weights, name_);
  cuda::Matmul data = plain_product(*context_, rows, inputs_, outputs_);
  data.a = dy;
  data.a_stride = outputs_;
  data.b = weight_;
  data.b_stride = inputs_;
  data.c = dx;
  data.c_stride = inputs_;
  queue_product(*context_, data, name_);
}

std::size_t GpuRowLinear::planned_bytes() const noexcept {
  return context_->format() == Precision::fp32
             ? 0
             : static_cast<std::size_t>(outputs_ * inputs_) * context_->element_bytes();
}

void queue_row_norm(const GpuContext& context, std::int64_t rows, std::int64_t width,
                    const GpuRowNorm& norm, const float* x, float* y) {
  context.with_format([&]<typename T>(T) {
    context.gpu().rows(rows,
                       kernels::BasicRowNorm<T>{as_stored<T>(x), norm.gamma, norm.gamma + width,
                                                as_stored<T>(y), norm.mean, norm.inverse, width},
                       "a norm of rows");
  });
}

void queue_row_norm_gradient(GpuContext& context, std::int64_t rows, std::int64_t width,
                             const GpuRowNorm& norm, const float* x, const float* dy,
                             const float* addend, float* dx, float* gradients) {
  constexpr std::string_view kWhat = "a norm's gradient";
  Gpu& gpu = context.gpu();
  const kernels::ColumnParts cut = cut_columns(1, rows, width);
  auto* const plain = context.scratch<double>(3, row_norm_scratch(rows, width)[3]);
  double* const weighted = plain + cut.parts * width;
  context.with_format([&]<typename T>(T) {
    const kernels::RowNormColumnSums<T> sums{
        as_stored<T>(x), as_stored<T>(dy), norm.mean, norm.inverse, plain, weighted, cut};
    gpu.each(sums.units(), sums, kWhat);
  });
  gpu.each(width,
           kernels::NormParameterGradient{plain, weighted, gradients, gradients + width, cut.parts,
                                          width},
           kWhat);
  if (dx == nullptr) {
    return;
  }
  context.with_format([&]<typename T>(T) {
    gpu.rows(rows,
             kernels::BasicRowNormGradient<T>{as_stored<T>(x), as_stored<T>(dy), norm.gamma,
                                              norm.mean, norm.inverse, as_stored<T>(addend),
                                              as_stored<T>(dx), width},
             kWhat);
  });
}

ScratchAreas row_norm_scratch(std::int64_t rows, std::int64_t width) {
  ScratchAreas areas{};
  areas[3] =
      2 * static_cast<std::size_t>(cut_columns(1, rows, width).parts * width) * sizeof(double);
  return areas;
}

}  // namespace paceline
