// SPDX-License-Identifier: Apache-2.0
// onebit and sign: one bit per element and one or two magnitudes.
#include <algorithm>
#include <array>
#include <bit>

#include "common/compress/bits.h"
#include "common/compress/families.h"
#include "common/compress/message.h"

namespace paceline {

namespace {

using compress::bad_message;
using compress::expect_bytes;
using compress::kWord;
using compress::view;
using compress::words_of;

constexpr std::size_t kHead = 8;

std::size_t bit_bytes(std::size_t elements) noexcept {
  return kHead + sizeof(std::uint64_t) * words_of(elements);
}

/// Calls f(word index, 64 values) for all of `in`; the last ones are filled up with zeros.
template <typename F>
void for_words(std::span<const float> in, F f) {
  const std::size_t whole = in.size() / kWord;
  for (std::size_t w = 0; w < whole; ++w) {
    f(w, in.data() + w * kWord);
  }
  if (whole * kWord < in.size()) {
    std::array<float, kWord> rest{};
    std::copy(in.begin() + static_cast<std::ptrdiff_t>(whole * kWord), in.end(), rest.begin());
    f(whole, rest.data());
  }
}

/// values[i] = combine(values[i], bit i ? when_set : when_clear).
template <typename Combine>
void combine_bits(const std::uint64_t* words, float when_clear, float when_set,
                  std::span<float> values, Combine combine) {
  const __m256 clear = _mm256_set1_ps(when_clear);
  const __m256 set = _mm256_set1_ps(when_set);
  const std::size_t whole = values.size() / kWord;
  for (std::size_t w = 0; w < whole; ++w) {
    compress::combine_word(words[w], clear, set, values.data() + w * kWord, combine);
  }
  const std::size_t rest = values.size() - whole * kWord;
  if (rest > 0) {
    std::array<float, kWord> last{};
    const auto from = values.subspan(whole * kWord);
    std::copy(from.begin(), from.end(), last.begin());
    compress::combine_word(words[whole], clear, set, last.data(), combine);
    std::copy(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(rest), from.begin());
  }
}

constexpr auto kAdd = [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); };
/// a − b, 0 where that is not finite.
constexpr auto kSubtractFinite = [](__m256 a, __m256 b) {
  const __m256 difference = _mm256_sub_ps(a, b);
  const __m256 exponent = _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000));
  const __m256 is_special = _mm256_castsi256_ps(_mm256_cmpeq_epi32(
      _mm256_castps_si256(_mm256_and_ps(difference, exponent)), _mm256_castps_si256(exponent)));
  return _mm256_andnot_ps(is_special, difference);
};

void check_bits(std::string_view codec, const CodecContext& context,
                std::span<const std::byte> message, std::size_t elements) {
  expect_bytes(codec, context, message.size(), bit_bytes(elements));
  const std::size_t rest = elements % kWord;
  if (rest > 0 && (view<std::uint64_t>(message, kHead)[elements / kWord] >> rest) != 0) {
    throw bad_message(codec, context, "has bits beyond its last element");
  }
}

class OnebitCodec final : public Codec {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "onebit"; }
  [[nodiscard]] std::size_t max_bytes(std::size_t elements) const noexcept override {
    return bit_bytes(elements);
  }

  [[nodiscard]] std::size_t encode(std::span<const float> in, const CodecContext& /*context*/,
                                   std::span<std::byte> out) const override {
    auto* words = view<std::uint64_t>(out, kHead);
    __m256d positive = _mm256_setzero_pd();
    __m256d negative = _mm256_setzero_pd();
    std::size_t negatives = 0;
    const __m256 zero = _mm256_setzero_ps();
    for_words(in, [&](std::size_t w, const float* values) {
      words[w] = compress::negative_bits(values);
      negatives += static_cast<std::size_t>(std::popcount(words[w]));
      // max(0, x) is x for a NaN, min(x, 0) is 0: the mean of the others shows it.
      positive = _mm256_add_pd(positive, compress::sum_word(values, [zero](__m256 x) {
                                 return _mm256_max_ps(zero, x);
                               }));
      negative = _mm256_add_pd(negative, compress::sum_word(values, [zero](__m256 x) {
                                 return _mm256_min_ps(x, zero);
                               }));
    });
    auto* means = view<float>(out);
    means[0] = mean(compress::total(positive), in.size() - negatives);
    means[1] = mean(compress::total(negative), negatives);
    return max_bytes(in.size());
  }

  void check(std::span<const std::byte> message, const CodecContext& context,
             std::size_t elements) const override {
    check_bits(name(), context, message, elements);
  }

  void decode_add(std::span<const std::byte> message, const CodecContext& context,
                  std::span<float> sum, Aggregate& /*aggregate*/) const override {
    check(message, context, sum.size());
    const auto* means = view<float>(message);
    combine_bits(view<std::uint64_t>(message, kHead), means[0], means[1], sum, kAdd);
  }

  void subtract(std::span<const std::byte> message, const CodecContext& /*context*/,
                std::span<float> values) const override {
    const auto* means = view<float>(message);
    combine_bits(view<std::uint64_t>(message, kHead), means[0], means[1], values, kSubtractFinite);
  }

 private:
  static float mean(double sum, std::size_t count) noexcept {
    return count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
  }
};

class SignCodec final : public Codec {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "sign"; }
  [[nodiscard]] std::size_t max_bytes(std::size_t elements) const noexcept override {
    return bit_bytes(elements);
  }

  [[nodiscard]] std::size_t encode(std::span<const float> in, const CodecContext& /*context*/,
                                   std::span<std::byte> out) const override {
    auto* words = view<std::uint64_t>(out, kHead);
    __m256d sum = _mm256_setzero_pd();
    const __m256 sign = _mm256_set1_ps(-0.0F);
    for_words(in, [&](std::size_t w, const float* values) {
      words[w] = compress::negative_bits(values);
      sum = _mm256_add_pd(
          sum, compress::sum_word(values, [sign](__m256 x) { return _mm256_andnot_ps(sign, x); }));
    });
    view<float>(out)[0] =
        in.empty() ? 0.0F
                   : static_cast<float>(compress::total(sum) / static_cast<double>(in.size()));
    view<std::uint32_t>(out)[1] = 0;
    return max_bytes(in.size());
  }

  void check(std::span<const std::byte> message, const CodecContext& context,
             std::size_t elements) const override {
    check_bits(name(), context, message, elements);
    if (view<std::uint32_t>(message)[1] != 0) {
      throw bad_message(name(), context, "has its reserved bytes set");
    }
  }

  /// Adds this rank's votes, +1 or −1; a rank whose gradient is all zeros has none.
  void decode_add(std::span<const std::byte> message, const CodecContext& context,
                  std::span<float> sum, Aggregate& aggregate) const override {
    check(message, context, sum.size());
    const float magnitude = view<float>(message)[0];
    if (magnitude == 0.0F) {
      return;
    }
    aggregate.magnitude += static_cast<double>(magnitude);
    combine_bits(view<std::uint64_t>(message, kHead), 1.0F, -1.0F, sum, kAdd);
  }

  /// Votes to sign(votes)·magnitude; a tie is 0.
  void finish(std::span<float> sum, const Aggregate& aggregate) const override {
    const auto magnitude = static_cast<float>(aggregate.magnitude);
    float* at = sum.data();
#pragma omp simd
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const float up = at[i] > 0.0F ? 1.0F : 0.0F;
      const float down = at[i] < 0.0F ? 1.0F : 0.0F;
      at[i] = (up - down) * magnitude;
    }
  }

  void subtract(std::span<const std::byte> message, const CodecContext& /*context*/,
                std::span<float> values) const override {
    const float magnitude = view<float>(message)[0];
    combine_bits(view<std::uint64_t>(message, kHead), magnitude, -magnitude, values,
                 kSubtractFinite);
  }
};

}  // namespace

std::unique_ptr<Codec> make_onebit_codec() {
  return std::make_unique<OnebitCodec>();
}
std::unique_ptr<Codec> make_sign_codec() {
  return std::make_unique<SignCodec>();
}

}  // namespace paceline
