// SPDX-License-Identifier: Apache-2.0
// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): what compression left out of a
// gradient is added to the next one.
#pragma once

#include <cstddef>
#include <span>

#include "common/base/buffer.h"
#include "common/compress/codec.h"

namespace paceline {

/// One per rank. Disjoint ranges may be encoded from different threads.
class ErrorFeedback {
 public:
  /// `elements` of the arena; `enabled` false: encodes without memory.
  ErrorFeedback(std::size_t elements, bool enabled);

  /// Encodes gradient + residual of the arena's range that begins at context.begin. The gradient's
  /// memory is overwritten (it is scratch afterwards); the residual becomes what the message lacks.
  /// Elements that are not finite leave no residual. Otherwise as Codec::encode.
  [[nodiscard]] std::size_t encode(const Codec& codec, std::span<float> gradient,
                                   const CodecContext& context, std::span<std::byte> out);

  [[nodiscard]] std::span<float> residual() noexcept { return residual_.as<float>(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return residual_.size(); }

 private:
  Buffer residual_;
};

}  // namespace paceline
