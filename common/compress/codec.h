// SPDX-License-Identifier: Apache-2.0
// How a range of gradients becomes fewer bytes and back. A codec knows nothing about who sends what
// to whom: a collective adds what is summable hop by hop and gathers the rest; a server decodes and
// adds what workers push.
//
// Messages of n elements, little-endian as in memory, without a header:
//   fp16, bf16  n 16-bit values of gradient·scale                                  2n bytes
//   topk        k indices (u32, ascending), their k values (f32)                   8k
//               k = max(1, ceil(n·density)), 0 for n = 0; ties go to the lower index, NaN is the
//               largest magnitude
//   randomk     k values (f32) at indices that follow from (seed, step, begin)     4k
//   threshold   count c (u32), zero (u32), c indices, c values with
//               |gradient|·scale >= threshold, or NaN                              8c + 8
//   onebit      mean of the elements >= 0, mean of those < 0 (f32 each), then a bit per element
//               (1: negative) in 64-bit words (Seide et al. 2014, with two scales) 8 + 8·ceil(n/64)
//   sign        mean magnitude (f32), zero (u32), then bits as in onebit; majority vote (Bernstein
//               et al. 2018, 2019), scaled by the ranks' mean magnitudes           8 + 8·ceil(n/64)
//   qsgd        per 512 elements their largest magnitude (f32), then per element a level of
//               bit_width(s) bits and a sign above it, b bits together, in 64-bit words; levels
//               0..s are rounded stochastically (Alistarh et al. 2017, with the max norm)
//                                                           4·ceil(n/512) + 8·ceil(n·b/64)
// Values that are not finite are never hidden: what a receiver decodes from them is not finite
// either, with sparse codecs at the same elements, with the others perhaps at more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "common/comm/transport.h"
#include "common/config/config.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// What both ends of a message know besides its bytes.
struct CodecContext {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::size_t begin = 0;  ///< of the range in the arena
  int rank = 0;           ///< of the sender
  /// 1 / samples that the receiver divides the sum by: what is multiplied with it is a mean.
  /// Formats of 16 bits send gradient·scale, so that a sum of large gradients cannot overflow;
  /// `threshold` compares with it. Finite and over 0.
  float scale = 1.0F;
};

/// What adding several ranks' messages needs between them besides the sum itself.
struct Aggregate {
  double magnitude = 0.0;  ///< sign: sum of the ranks' mean magnitudes
};

/// Immutable, so any number of threads may use it.
class Codec {
 public:
  Codec() = default;
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// The type whose element-wise sum over ranks is the message of the sum, so that an allreduce may
  /// add messages on the way; none: messages must be gathered. All messages of a range then have
  /// the same length on every rank.
  [[nodiscard]] virtual std::optional<DataType> summable() const noexcept { return std::nullopt; }

  /// Whether every message of n elements has max_bytes(n) bytes.
  [[nodiscard]] virtual bool fixed_length() const noexcept { return true; }

  /// Whether the messages of a range's parts, one after the other, are the range's message, so that
  /// it may be encoded and decoded in parts.
  [[nodiscard]] virtual bool concatenates() const noexcept { return false; }

  /// No message of `elements` is longer.
  [[nodiscard]] virtual std::size_t max_bytes(std::size_t elements) const noexcept = 0;

  /// Encodes `in` into `out` (max_bytes(in.size()) bytes, 8-byte aligned); returns the message's
  /// length. Deterministic in its arguments.
  [[nodiscard]] virtual std::size_t encode(std::span<const float> in, const CodecContext& context,
                                           std::span<std::byte> out) const = 0;

  /// Throws Error naming what is wrong with a message (8-byte aligned) of `elements` that may come
  /// from another process; what passes, decode_add takes.
  virtual void check(std::span<const std::byte> message, const CodecContext& context,
                     std::size_t elements) const = 0;

  /// sum[i] += what the message holds for element i. Throws as check() before it writes anything.
  virtual void decode_add(std::span<const std::byte> message, const CodecContext& context,
                          std::span<float> sum, Aggregate& aggregate) const = 0;

  /// After the last decode_add of a sum that began with zeros: `sum` becomes an estimate of the sum
  /// of the gradients.
  virtual void finish(std::span<float> /*sum*/, const Aggregate& /*aggregate*/) const {}

  /// values[i] -= what finish() gives after decode_add() of this message alone; 0 where that is not
  /// finite. `message` is this process's own, of values.size() elements, and is not checked.
  virtual void subtract(std::span<const std::byte> message, const CodecContext& context,
                        std::span<float> values) const = 0;
};

/// The codec of compress.method and sync.wire, null where gradients travel as they are; PowerSGD is
/// none (power_sgd.h). Throws ConfigError where both ask for one. randomk without error feedback
/// multiplies by n/k on decoding, so that its expectation is the gradient; with error feedback it
/// does not, since what is left out is sent later.
[[nodiscard]] std::unique_ptr<Codec> make_codec(const CompressConfig& compress,
                                                std::string_view wire);

}  // namespace paceline
