// SPDX-License-Identifier: Apache-2.0
// fp16 and bf16.
#include <algorithm>
#include <array>

#include "common/base/half.h"
#include "common/compress/families.h"
#include "common/compress/message.h"

namespace paceline {

namespace {

using compress::expect_bytes;
using compress::finite_or_zero;
using compress::view;

struct HalfFormat {
  static constexpr std::string_view kName = "fp16";
  static constexpr DataType kType = DataType::f16;
  static void to(std::span<const float> in, float scale, std::span<std::uint16_t> out) noexcept {
    to_half(in, scale, out);
  }
  static void from(std::span<const std::uint16_t> in, float scale, std::span<float> out) noexcept {
    from_half(in, scale, out);
  }
};

struct BfloatFormat {
  static constexpr std::string_view kName = "bf16";
  static constexpr DataType kType = DataType::bf16;
  static void to(std::span<const float> in, float scale, std::span<std::uint16_t> out) noexcept {
    to_bfloat(in, scale, out);
  }
  static void from(std::span<const std::uint16_t> in, float scale, std::span<float> out) noexcept {
    from_bfloat(in, scale, out);
  }
};

template <typename Format>
class SixteenBitCodec final : public Codec {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return Format::kName; }
  [[nodiscard]] std::optional<DataType> summable() const noexcept override { return Format::kType; }
  [[nodiscard]] bool concatenates() const noexcept override { return true; }
  [[nodiscard]] std::size_t max_bytes(std::size_t elements) const noexcept override {
    return elements * sizeof(std::uint16_t);
  }

  [[nodiscard]] std::size_t encode(std::span<const float> in, const CodecContext& context,
                                   std::span<std::byte> out) const override {
    Format::to(in, context.scale, {view<std::uint16_t>(out), in.size()});
    return max_bytes(in.size());
  }

  void check(std::span<const std::byte> message, const CodecContext& context,
             std::size_t elements) const override {
    expect_bytes(name(), context, message.size(), max_bytes(elements));
  }

  void decode_add(std::span<const std::byte> message, const CodecContext& context,
                  std::span<float> sum, Aggregate& /*aggregate*/) const override {
    check(message, context, sum.size());
    by_block(message, context, sum, [](float a, float b) { return a + b; });
  }

  void subtract(std::span<const std::byte> message, const CodecContext& context,
                std::span<float> values) const override {
    by_block(message, context, values, [](float a, float b) { return finite_or_zero(a - b); });
  }

 private:
  template <typename Combine>
  static void by_block(std::span<const std::byte> message, const CodecContext& context,
                       std::span<float> values, Combine combine) {
    constexpr std::size_t kPiece = 1024;
    std::array<float, kPiece> decoded;
    const auto* from = view<std::uint16_t>(message);
    for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
      const std::size_t n = std::min(kPiece, values.size() - begin);
      Format::from({from + begin, n}, 1.0F / context.scale, std::span(decoded).first(n));
      float* __restrict to = values.data() + begin;
#pragma omp simd
      for (std::size_t i = 0; i < n; ++i) {
        to[i] = combine(to[i], decoded[i]);
      }
    }
  }
};

}  // namespace

std::unique_ptr<Codec> make_half_codec() {
  return std::make_unique<SixteenBitCodec<HalfFormat>>();
}
std::unique_ptr<Codec> make_bfloat_codec() {
  return std::make_unique<SixteenBitCodec<BfloatFormat>>();
}

}  // namespace paceline
