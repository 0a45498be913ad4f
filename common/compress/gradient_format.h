// SPDX-License-Identifier: Apache-2.0
// How gradients and answers of a job travel between workers and servers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/compress/codec.h"

namespace paceline {

/// Plain data, the same on every worker and server of a job.
struct GradientFormat {
  CompressConfig compress;
  std::string wire = "fp32";  ///< fp32 | bf16 | fp16
  std::uint64_t seed = 1;     ///< of the codecs' random choices

  /// Null where pushes carry fp32 gradients.
  [[nodiscard]] std::unique_ptr<Codec> codec() const { return make_codec(compress, wire); }
  /// Compressors remember what they leave out, if asked to; sync.wire does not.
  [[nodiscard]] bool error_feedback() const {
    return compress.method != "none" && compress.error_feedback;
  }
  /// Elements of the weights that answer a push. sync.wire halves both directions; a compressor
  /// leaves weights as they are.
  [[nodiscard]] DataType weights() const {
    if (wire == "fp16") {
      return DataType::f16;
    }
    return wire == "bf16" ? DataType::bf16 : DataType::f32;
  }
  /// Of the message of the range from `begin` on, of `samples` samples.
  [[nodiscard]] CodecContext context(std::uint64_t step, std::size_t begin, std::uint64_t samples,
                                     int rank) const {
    const float scale = samples == 0 ? 1.0F : 1.0F / static_cast<float>(samples);
    return {seed, static_cast<std::int64_t>(step), begin, rank, scale};
  }
};

/// As it is configured.
[[nodiscard]] inline GradientFormat job_format(const Config& config) {
  return {config.compress, config.sync_options.wire, config.seed};
}

}  // namespace paceline
