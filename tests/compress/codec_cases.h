// SPDX-License-Identifier: Apache-2.0
// Codecs, inputs and one-message round trips for the compressors' tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/compress/codec.h"

namespace paceline::testing {

inline constexpr std::size_t kSizes[] = {0, 1, 2, 63, 64, 65, 511, 512, 513, 1000, 100003};

inline CompressConfig method(const std::string& name, bool error_feedback = true) {
  CompressConfig config;
  config.method = name;
  config.error_feedback = error_feedback;
  return config;
}

inline std::unique_ptr<Codec> codec_of(const std::string& name, bool error_feedback = true) {
  return make_codec(method(name, error_feedback), "fp32");
}

/// Normal numbers, the same for the same seed.
inline std::vector<float> gaussian(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) {
    value = normal(engine);
  }
  return values;
}

/// A message in 8-byte aligned memory.
class Message {
 public:
  Message(const Codec& codec, std::span<const float> in, const CodecContext& context)
      : words_(codec.max_bytes(in.size()) / 8 + 1),
        bytes_(codec.encode(
            in, context,
            std::as_writable_bytes(std::span(words_)).first(codec.max_bytes(in.size())))) {}
  explicit Message(std::size_t bytes) : words_(bytes / 8 + 1), bytes_(bytes) {}

  [[nodiscard]] std::span<std::byte> bytes() {
    return std::as_writable_bytes(std::span(words_)).first(bytes_);
  }
  template <typename T>
  [[nodiscard]] T* at(std::size_t offset) {
    return reinterpret_cast<T*>(bytes().data() + offset);
  }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t bytes_;
};

/// What a receiver of this one message gets.
inline std::vector<float> decoded(const Codec& codec, std::span<const std::byte> message,
                                  const CodecContext& context, std::size_t n) {
  std::vector<float> sum(n, 0.0F);
  Aggregate aggregate;
  codec.decode_add(message, context, sum, aggregate);
  codec.finish(sum, aggregate);
  return sum;
}

inline std::vector<float> round_trip(const Codec& codec, std::span<const float> in,
                                     const CodecContext& context) {
  Message message(codec, in, context);
  return decoded(codec, message.bytes(), context, in.size());
}

}  // namespace paceline::testing
