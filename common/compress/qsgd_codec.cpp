// SPDX-License-Identifier: Apache-2.0
// QSGD (Alistarh et al. 2017) over blocks of 512 elements and their largest magnitude.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/compress/bits.h"
#include "common/compress/families.h"
#include "common/compress/message.h"

namespace paceline {

namespace {

using compress::bad_message;
using compress::expect_bytes;
using compress::finite_or_zero;

using compress::magnitude_bits;
using compress::words_of;

constexpr std::size_t kBlock = 512;  // a block's fields fill whole words, whatever their width
constexpr unsigned kWordBits = 64;
constexpr std::uint64_t kStream = 0x71736764;
using Fields = std::array<std::uint32_t, kBlock>;

constexpr std::size_t blocks_of(std::size_t elements) noexcept {
  return (elements + kBlock - 1) / kBlock;
}

/// `bits` lowest bits of each field, one after the other from the words' lowest bits on. Words are
/// copied: after an odd number of norms they are not aligned.
void pack(std::span<const std::uint32_t> fields, unsigned bits, std::byte* words) {
  std::uint64_t word = 0;
  unsigned filled = 0;
  const auto put = [&] {
    std::memcpy(words, &word, sizeof(word));
    words += sizeof(word);
  };
  for (const std::uint32_t field : fields) {
    word |= static_cast<std::uint64_t>(field) << filled;
    filled += bits;
    if (filled >= kWordBits) {
      put();
      filled -= kWordBits;
      word = filled == 0 ? 0 : static_cast<std::uint64_t>(field) >> (bits - filled);
    }
  }
  if (filled > 0) {
    put();
  }
}

void unpack(const std::byte* words, unsigned bits, std::span<std::uint32_t> fields) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  std::uint64_t word = 0;
  unsigned left = 0;  // bits of `word` that are not taken yet
  for (std::uint32_t& field : fields) {
    std::uint64_t value = word;
    if (left < bits) {
      std::memcpy(&word, words, sizeof(word));
      words += sizeof(word);
      value |= word << left;
      word = bits - left == kWordBits ? 0 : word >> (bits - left);
      left += kWordBits;
    } else {
      word >>= bits;
    }
    left -= bits;
    field = static_cast<std::uint32_t>(value & mask);
  }
}

class QsgdCodec final : public Codec {
 public:
  explicit QsgdCodec(int levels)
      : levels_(static_cast<std::uint32_t>(levels)),
        level_bits_(static_cast<unsigned>(std::bit_width(levels_))) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "qsgd"; }
  [[nodiscard]] std::size_t max_bytes(std::size_t elements) const noexcept override {
    return sizeof(float) * blocks_of(elements) +
           sizeof(std::uint64_t) * words_of(elements * field_bits());
  }

  [[nodiscard]] std::size_t encode(std::span<const float> in, const CodecContext& context,
                                   std::span<std::byte> out) const override {
    const std::uint64_t key = compress::random_key(
        context.seed, context.step, kStream + (static_cast<std::uint64_t>(context.rank) << 32U));
    std::byte* words = out.data() + sizeof(float) * blocks_of(in.size());
    Fields fields;
    for (std::size_t block = 0; block < blocks_of(in.size()); ++block) {
      const auto part = in.subspan(block * kBlock, std::min(kBlock, in.size() - block * kBlock));
      const float norm = largest(part);
      std::memcpy(out.data() + block * sizeof(float), &norm, sizeof(norm));
      quantise(part, norm, key + context.begin + block * kBlock, fields);
      pack(std::span(fields).first(part.size()), field_bits(), words_at(words, block));
    }
    return max_bytes(in.size());
  }

  void check(std::span<const std::byte> message, const CodecContext& context,
             std::size_t elements) const override {
    expect_bytes(name(), context, message.size(), max_bytes(elements));
    if (!std::has_single_bit(levels_ + 1)) {
      check_levels(message, context, elements);
    }
  }

  void decode_add(std::span<const std::byte> message, const CodecContext& context,
                  std::span<float> sum, Aggregate& /*aggregate*/) const override {
    check(message, context, sum.size());
    by_block(message, sum, [](float a, float b) { return a + b; });
  }

  void subtract(std::span<const std::byte> message, const CodecContext& /*context*/,
                std::span<float> values) const override {
    by_block(message, values, [](float a, float b) { return finite_or_zero(a - b); });
  }

 private:
  [[nodiscard]] unsigned field_bits() const noexcept { return level_bits_ + 1; }
  template <typename Byte>
  [[nodiscard]] Byte* words_at(Byte* words, std::size_t block) const noexcept {
    return words + block * kBlock * field_bits() / 8;
  }

  static float largest(std::span<const float> part) noexcept {
    std::uint32_t most = 0;
    for (const float value : part) {
      most = std::max(most, magnitude_bits(value));
    }
    return std::bit_cast<float>(most);
  }

  /// A level and a sign for each element: |x|/norm·s, rounded up with the probability of its
  /// fraction. `counter` + i names element i's random number.
  void quantise(std::span<const float> part, float norm, std::uint64_t counter,
                Fields& fields) const noexcept {
    if (!compress::is_finite(norm) || norm == 0.0F) {
      fields.fill(0);
      return;
    }
    const auto most = static_cast<std::int32_t>(levels_);
    const auto scale = static_cast<float>(levels_);
    const float* from = part.data();
    std::uint32_t* to = fields.data();
    const unsigned sign_at = level_bits_;
#pragma omp simd
    for (std::size_t i = 0; i < part.size(); ++i) {
      const float exact = std::bit_cast<float>(magnitude_bits(from[i])) / norm * scale;
      const auto whole = static_cast<std::int32_t>(exact);
      const float uniform =
          static_cast<float>(static_cast<std::int32_t>(compress::mix(counter + i) >> 40U)) *
          0x1.0p-24F;
      const std::int32_t level = whole + (uniform < exact - static_cast<float>(whole) ? 1 : 0);
      const std::uint32_t sign = std::bit_cast<std::uint32_t>(from[i]) >> 31U;
      to[i] = static_cast<std::uint32_t>(level < most ? level : most) | (sign << sign_at);
    }
  }

  void check_levels(std::span<const std::byte> message, const CodecContext& context,
                    std::size_t elements) const {
    const std::byte* words = message.data() + sizeof(float) * blocks_of(elements);
    const std::uint32_t mask = (1U << level_bits_) - 1;
    Fields fields;
    for (std::size_t block = 0; block < blocks_of(elements); ++block) {
      const auto part = std::span(fields).first(std::min(kBlock, elements - block * kBlock));
      unpack(words_at(words, block), field_bits(), part);
      std::uint32_t most = 0;
      for (const std::uint32_t field : part) {
        most = std::max(most, field & mask);
      }
      if (most > levels_) {
        throw bad_message(name(), context, fmt::format("has level {} of {}", most, levels_));
      }
    }
  }

  template <typename Combine>
  void by_block(std::span<const std::byte> message, std::span<float> values,
                Combine combine) const {
    const std::byte* words = message.data() + sizeof(float) * blocks_of(values.size());
    const std::uint32_t mask = (1U << level_bits_) - 1;
    const unsigned to_sign = 31U - level_bits_;
    Fields fields;
    for (std::size_t block = 0; block < blocks_of(values.size()); ++block) {
      const std::size_t n = std::min(kBlock, values.size() - block * kBlock);
      unpack(words_at(words, block), field_bits(), std::span(fields).first(n));
      float norm = 0.0F;
      std::memcpy(&norm, message.data() + block * sizeof(float), sizeof(norm));
      const float step = norm / static_cast<float>(levels_);
      float* __restrict to = values.data() + block * kBlock;
#pragma omp simd
      for (std::size_t i = 0; i < n; ++i) {
        const float size = static_cast<float>(static_cast<std::int32_t>(fields[i] & mask)) * step;
        const std::uint32_t sign = (fields[i] << to_sign) & 0x80000000U;
        to[i] = combine(to[i], std::bit_cast<float>(std::bit_cast<std::uint32_t>(size) ^ sign));
      }
    }
  }

  std::uint32_t levels_;
  unsigned level_bits_;
};

}  // namespace

std::unique_ptr<Codec> make_qsgd_codec(int levels) {
  return std::make_unique<QsgdCodec>(levels);
}

}  // namespace paceline
