// SPDX-License-Identifier: Apache-2.0
#include "common/compress/error_feedback.h"

#include "common/compress/message.h"

namespace paceline {

ErrorFeedback::ErrorFeedback(std::size_t elements, bool enabled)
    : residual_(enabled ? elements * sizeof(float) : 0) {}

std::size_t ErrorFeedback::encode(const Codec& codec, std::span<float> gradient,
                                  const CodecContext& context, std::span<std::byte> out) {
  if (residual_.size() == 0) {
    return codec.encode(gradient, context, out);
  }
  const std::span<float> left = residual().subspan(context.begin, gradient.size());
  float* __restrict sent = gradient.data();
  float* __restrict kept = left.data();
#pragma omp simd
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float sum = sent[i] + kept[i];
    sent[i] = sum;
    kept[i] = compress::finite_or_zero(sum);
  }
  const std::size_t bytes = codec.encode(gradient, context, out);
  codec.subtract(std::span<const std::byte>(out).first(bytes), context, left);
  return bytes;
}

}  // namespace paceline
