// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_attention.h"

#include <cmath>

#include "common/core/kernels_sequence.h"
#include "common/core/kernels_transformer.h"

namespace paceline {

GpuAttention::GpuAttention(GpuContextPtr context, const TransformerShape& shape)
    : context_(std::move(context)), shape_(shape), fused_(obstacle_of_all() == nullptr) {}

float GpuAttention::scale() const noexcept {
  return 1.0F / std::sqrt(static_cast<float>(head_width()));
}

cuda::Attention GpuAttention::whole(std::int64_t samples) const noexcept {
  cuda::Attention shape{};
  shape.format = context_->format();
  shape.causal = 1;
  shape.samples = samples;
  shape.heads = shape_.heads;
  shape.positions = shape_.positions;
  shape.width = head_width();
  shape.scale = scale();
  shape.equal_bits = context_->gpu().attention() == Fusing::ordered ? 1 : 0;
  return shape;
}

GpuAttention::Kept GpuAttention::lay_out(std::int64_t samples, bool fused,
                                         DeviceParts& parts) const {
  const std::int64_t rows = samples * shape_.positions;
  const std::size_t bytes = context_->element_bytes();
  Kept kept{};
  kept.qkv = parts.take(rows * 3 * shape_.width, bytes);
  kept.shares = fused ? parts.take(rows * shape_.heads, sizeof(float))
                      : parts.take(rows * shape_.heads * shape_.positions, bytes);
  kept.attended = parts.take(rows * shape_.width, bytes);
  return kept;
}

GpuAttention::Scratch GpuAttention::lay_out_scratch(std::int64_t samples, bool fused,
                                                    DeviceParts& parts) const {
  if (fused) {
    return {};
  }
  const std::int64_t rows = samples * shape_.positions;
  const std::size_t bytes = context_->element_bytes();
  Scratch scratch{};
  scratch.apart = parts.take(rows * shape_.width, bytes);
  scratch.qkv = parts.take(rows * 3 * shape_.width, bytes);
  scratch.squares = parts.take(rows * shape_.heads * shape_.positions, bytes);
  return scratch;
}

const char* GpuAttention::obstacle_of_all() const noexcept {
  if (context_->format() == Precision::fp32) {
    return "attention is fused in bf16 and fp16";
  }
  return context_->gpu().attention() == Fusing::never ? "cuda.attention = products" : nullptr;
}

std::string GpuAttention::obstacle(std::int64_t samples, bool training) const {
  if (const char* const reason = obstacle_of_all(); reason != nullptr) {
    return reason;
  }
  const cuda::Attention shape = whole(samples);
  const char* const reason =
      context_->math().attention_obstacle(context_->gpu().math(), &shape, training ? 1 : 0);
  return reason != nullptr ? reason : "";
}

bool GpuAttention::prepare(std::int64_t samples, bool training) {
  const bool before = fused_;
  fused_ = fuses(samples, training);
  return fused_ != before;
}

cuda::Matmul GpuAttention::product(std::int64_t samples, std::int64_t rows, std::int64_t columns,
                                   std::int64_t inner) const {
  cuda::Matmul made = plain_product(*context_, rows, columns, inner);
  made.batch = samples * shape_.heads;
  return made;
}

void GpuAttention::set_a(cuda::Matmul& p, const float* a, std::int64_t columns,
                         bool transposed) const {
  p.a = a;
  p.a_stride = columns;
  p.a_step = shape_.positions * columns;
  p.a_transposed = transposed ? 1 : 0;
}

void GpuAttention::set_b(cuda::Matmul& p, const float* b, std::int64_t columns,
                         bool transposed) const {
  p.b = b;
  p.b_stride = columns;
  p.b_step = shape_.positions * columns;
  p.b_transposed = transposed ? 1 : 0;
}

void GpuAttention::set_c(cuda::Matmul& p, float* c, std::int64_t columns) const {
  p.c = c;
  p.c_stride = columns;
  p.c_step = shape_.positions * columns;
}

void GpuAttention::split(std::int64_t samples, std::int64_t parts, const float* together,
                         float* apart) const {
  context_->with_format([&]<typename T>(T) {
    const kernels::HeadLayout heads{samples, shape_.positions, parts, shape_.heads, head_width()};
    const kernels::SplitHeads<T> splitting{as_stored<T>(together), as_stored<T>(apart), heads};
    context_->gpu().each(splitting.units(), splitting, "splitting heads");
  });
}

void GpuAttention::join(std::int64_t samples, std::int64_t parts, const float* apart,
                        float* together) const {
  context_->with_format([&]<typename T>(T) {
    const kernels::HeadLayout heads{samples, shape_.positions, parts, shape_.heads, head_width()};
    const kernels::JoinHeads<T> joining{as_stored<T>(apart), as_stored<T>(together), heads};
    context_->gpu().each(joining.units(), joining, "joining heads");
  });
}

void GpuAttention::forward(std::int64_t samples, const float* input, const Kept& kept,
                           const Scratch& scratch) const {
  if (!fused_) {
    split(samples, 3, input, kept.qkv);
    forward_by_products(samples, kept.qkv, kept.shares, scratch.apart);
    join(samples, 1, scratch.apart, kept.attended);
    return;
  }
  Gpu& gpu = context_->gpu();
  const cuda::Attention shape = whole(samples);
  gpu.check(context_->math().attend(gpu.math(), &shape, input, kept.attended, kept.shares),
            "attention");
}

void GpuAttention::backward(std::int64_t samples, const Kept& kept, const Scratch& scratch,
                            const float* d_attended, float* d_qkv) const {
  if (!fused_) {
    split(samples, 1, d_attended, scratch.apart);
    backward_by_products(samples, kept.qkv, kept.shares, scratch.apart, scratch.squares,
                         scratch.qkv);
    join(samples, 3, scratch.qkv, d_qkv);
    return;
  }
  Gpu& gpu = context_->gpu();
  const cuda::Attention shape = whole(samples);
  gpu.check(context_->math().attend_gradient(gpu.math(), &shape, kept.qkv, kept.attended,
                                             kept.shares, d_attended, d_qkv),
            "attention's gradient");
}

void GpuAttention::forward_by_products(std::int64_t samples, const float* qkv, float* shares,
                                       float* out) const {
  const std::int64_t t = shape_.positions;
  const std::int64_t d = head_width();
  cuda::Matmul scores = product(samples, t, t, d);
  scores.alpha = scale();
  set_a(scores, part(qkv, samples, 0), d, false);
  set_b(scores, part(qkv, samples, 1), d, true);
  set_c(scores, shares, t);
  queue_product(*context_, scores, "attention");
  context_->with_format([&]<typename T>(T) {
    context_->gpu().rows(samples * shape_.heads * t,
                         kernels::BasicCausalSoftmax<T>{as_stored<T>(shares), 1.0F, t},
                         "attention");
  });
  cuda::Matmul mixed = product(samples, t, d, t);
  set_a(mixed, shares, t, false);
  set_b(mixed, part(qkv, samples, 2), d, false);
  set_c(mixed, out, d);
  queue_product(*context_, mixed, "attention");
}

void GpuAttention::backward_by_products(std::int64_t samples, const float* qkv, const float* shares,
                                        const float* d_out, float* d_shares, float* d_qkv) const {
  const std::int64_t t = shape_.positions;
  const std::int64_t d = head_width();
  cuda::Matmul values = product(samples, t, d, t);
  set_a(values, shares, t, true);
  set_b(values, d_out, d, false);
  set_c(values, part(d_qkv, samples, 2), d);
  queue_product(*context_, values, "attention's gradient");
  cuda::Matmul of_shares = product(samples, t, t, d);
  set_a(of_shares, d_out, d, false);
  set_b(of_shares, part(qkv, samples, 2), d, true);
  set_c(of_shares, d_shares, t);
  queue_product(*context_, of_shares, "attention's gradient");
  context_->with_format([&]<typename T>(T) {
    context_->gpu().rows(samples * shape_.heads * t,
                         kernels::BasicCausalSoftmaxGradient<T>{as_stored<T>(shares),
                                                                as_stored<T>(d_shares), 1.0F, t},
                         "attention's gradient");
  });
  for (const int own : {0, 1}) {
    cuda::Matmul data = product(samples, t, d, t);
    data.alpha = scale();
    set_a(data, d_shares, t, own == 1);
    set_b(data, part(qkv, samples, 1 - own), d, false);
    set_c(data, part(d_qkv, samples, own), d);
    queue_product(*context_, data, "attention's gradient");
  }
}

const float* GpuAttention::part(const float* qkv, std::int64_t samples, int which) const noexcept {
  const auto elements = static_cast<std::size_t>(which * samples * shape_.positions * shape_.width);
  return reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(qkv) +
                                        elements * context_->element_bytes());
}

}  // namespace paceline
