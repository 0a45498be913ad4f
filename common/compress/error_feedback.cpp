// SPDX-License-Identifier: Apache-2.0
#include "common/compress/error_feedback.h"

#include <algorithm>

#include "common/compress/message.h"

namespace paceline {

namespace {

/// Four arrays of a part fit into the second cache.
constexpr std::size_t kPart = 8192;

std::size_t encode_part(const Codec& codec, std::span<float> gradient, std::span<float> residual,
                        const CodecContext& context, std::span<std::byte> out) {
  float* __restrict sent = gradient.data();
  float* __restrict kept = residual.data();
#pragma omp simd
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float sum = sent[i] + kept[i];
    sent[i] = sum;
    kept[i] = compress::finite_or_zero(sum);
  }
  const std::size_t bytes = codec.encode(gradient, context, out);
  codec.subtract(std::span<const std::byte>(out).first(bytes), context, residual);
  return bytes;
}

}  // namespace

ErrorFeedback::ErrorFeedback(std::size_t elements, bool enabled)
    : residual_(enabled ? elements * sizeof(float) : 0) {}

std::size_t ErrorFeedback::encode(const Codec& codec, std::span<float> gradient,
                                  const CodecContext& context, std::span<std::byte> out) {
  if (residual_.size() == 0) {
    return codec.encode(gradient, context, out);
  }
  const std::span<float> left = residual().subspan(context.begin, gradient.size());
  const std::size_t step = codec.concatenates() ? kPart : std::max<std::size_t>(1, gradient.size());
  std::size_t bytes = 0;
  for (std::size_t begin = 0; begin < gradient.size() || begin == 0; begin += step) {
    const std::size_t n = std::min(step, gradient.size() - begin);
    CodecContext part = context;
    part.begin += begin;
    bytes += encode_part(codec, gradient.subspan(begin, n), left.subspan(begin, n), part,
                         out.subspan(bytes));
  }
  return bytes;
}

}  // namespace paceline
