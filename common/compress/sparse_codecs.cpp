// SPDX-License-Identifier: Apache-2.0
// topk, randomk and threshold: some elements travel as they are.
#include <algorithm>
#include <vector>

#include "common/compress/families.h"
#include "common/compress/message.h"
#include "common/compress/select.h"

namespace paceline {

namespace {

using compress::bad_message;
using compress::check_elements;
using compress::expect_bytes;
using compress::kept;
using compress::view;

constexpr std::size_t kPairBytes = sizeof(std::uint32_t) + sizeof(float);

/// Indices and values of a message, pointing into it.
struct Pairs {
  std::span<const std::uint32_t> indices;
  const float* values = nullptr;
};

Pairs pairs_at(std::span<const std::byte> message, std::size_t offset, std::size_t count) {
  return {{view<std::uint32_t>(message, offset), count},
          view<float>(message, offset + count * sizeof(std::uint32_t))};
}

void check_indices(std::string_view codec, const CodecContext& context,
                   std::span<const std::uint32_t> indices, std::size_t elements) {
  std::uint32_t least = 0;
  for (const std::uint32_t index : indices) {
    if (index < least || index >= elements) {
      throw bad_message(codec, context,
                        fmt::format("has index {} after {} of {} elements; indices ascend", index,
                                    static_cast<std::int64_t>(least) - 1, elements));
    }
    least = index + 1;
  }
}

void add_pairs(const Pairs& pairs, std::span<float> sum) {
  for (std::size_t i = 0; i < pairs.indices.size(); ++i) {
    sum[pairs.indices[i]] += pairs.values[i];
  }
}

/// What travels exactly leaves nothing behind.
void clear(std::span<const std::uint32_t> indices, std::span<float> values) {
  for (const std::uint32_t index : indices) {
    values[index] = 0.0F;
  }
}

class TopkCodec final : public Codec {
 public:
  explicit TopkCodec(double density) : density_(density) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "topk"; }
  [[nodiscard]] std::size_t max_bytes(std::size_t elements) const noexcept override {
    return kPairBytes * kept(elements, density_);
  }

  [[nodiscard]] std::size_t encode(std::span<const float> in, const CodecContext& /*context*/,
                                   std::span<std::byte> out) const override {
    check_elements(name(), in.size());
    const std::span indices(view<std::uint32_t>(out), kept(in.size(), density_));
    compress::select_largest(in, indices);
    auto* values = view<float>(out, indices.size_bytes());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      values[i] = in[indices[i]];
    }
    return max_bytes(in.size());
  }

  void check(std::span<const std::byte> message, const CodecContext& context,
             std::size_t elements) const override {
    expect_bytes(name(), context, message.size(), max_bytes(elements));
    check_indices(name(), context, pairs_at(message, 0, kept(elements, density_)).indices,
                  elements);
  }

  void decode_add(std::span<const std::byte> message, const CodecContext& context,
                  std::span<float> sum, Aggregate& /*aggregate*/) const override {
    check(message, context, sum.size());
    add_pairs(pairs_at(message, 0, kept(sum.size(), density_)), sum);
  }

  void subtract(std::span<const std::byte> message, const CodecContext& /*context*/,
                std::span<float> values) const override {
    clear(pairs_at(message, 0, kept(values.size(), density_)).indices, values);
  }

 private:
  double density_;
};

class ThresholdCodec final : public Codec {
 public:
  explicit ThresholdCodec(double threshold) : threshold_(threshold) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "threshold"; }
  [[nodiscard]] bool fixed_length() const noexcept override { return false; }
  [[nodiscard]] std::size_t max_bytes(std::size_t elements) const noexcept override {
    return kHead + kPairBytes * elements;
  }

  [[nodiscard]] std::size_t encode(std::span<const float> in, const CodecContext& context,
                                   std::span<std::byte> out) const override {
    check_elements(name(), in.size());
    const auto least = static_cast<float>(threshold_ / static_cast<double>(context.scale));
    auto* indices = view<std::uint32_t>(out, kHead);
    std::uint32_t count = 0;
    compress::for_each_at_least(in, compress::magnitude_bits(least),
                                [&](std::uint32_t index) { indices[count++] = index; });
    view<std::uint32_t>(out)[0] = count;
    view<std::uint32_t>(out)[1] = 0;
    auto* values = view<float>(out, kHead + count * sizeof(std::uint32_t));
    for (std::uint32_t i = 0; i < count; ++i) {
      values[i] = in[indices[i]];
    }
    return kHead + kPairBytes * count;
  }

  void check(std::span<const std::byte> message, const CodecContext& context,
             std::size_t elements) const override {
    if (message.size() < kHead) {
      throw bad_message(name(), context, fmt::format("ends after {} bytes", message.size()));
    }
    const std::uint32_t count = view<std::uint32_t>(message)[0];
    if (count > elements || view<std::uint32_t>(message)[1] != 0) {
      throw bad_message(name(), context,
                        fmt::format("announces {} of {} elements, or its reserved bytes are set",
                                    count, elements));
    }
    expect_bytes(name(), context, message.size(), kHead + kPairBytes * count);
    check_indices(name(), context, pairs_at(message, kHead, count).indices, elements);
  }

  void decode_add(std::span<const std::byte> message, const CodecContext& context,
                  std::span<float> sum, Aggregate& /*aggregate*/) const override {
    check(message, context, sum.size());
    add_pairs(pairs_at(message, kHead, view<std::uint32_t>(message)[0]), sum);
  }

  void subtract(std::span<const std::byte> message, const CodecContext& /*context*/,
                std::span<float> values) const override {
    clear(pairs_at(message, kHead, view<std::uint32_t>(message)[0]).indices, values);
  }

 private:
  static constexpr std::size_t kHead = 2 * sizeof(std::uint32_t);
  double threshold_;
};

class RandomkCodec final : public Codec {
 public:
  RandomkCodec(double density, bool unbiased) : density_(density), unbiased_(unbiased) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "randomk"; }
  [[nodiscard]] std::optional<DataType> summable() const noexcept override { return DataType::f32; }
  [[nodiscard]] std::size_t max_bytes(std::size_t elements) const noexcept override {
    return sizeof(float) * kept(elements, density_);
  }

  [[nodiscard]] std::size_t encode(std::span<const float> in, const CodecContext& context,
                                   std::span<std::byte> out) const override {
    const std::vector<std::uint32_t> indices = indices_of(in.size(), context);
    auto* values = view<float>(out);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      values[i] = in[indices[i]];
    }
    return max_bytes(in.size());
  }

  void check(std::span<const std::byte> message, const CodecContext& context,
             std::size_t elements) const override {
    expect_bytes(name(), context, message.size(), max_bytes(elements));
  }

  void decode_add(std::span<const std::byte> message, const CodecContext& context,
                  std::span<float> sum, Aggregate& /*aggregate*/) const override {
    check(message, context, sum.size());
    const std::vector<std::uint32_t> indices = indices_of(sum.size(), context);
    const float factor = factor_of(sum.size(), indices.size());
    const auto* values = view<float>(message);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      sum[indices[i]] += values[i] * factor;
    }
  }

  void subtract(std::span<const std::byte> message, const CodecContext& context,
                std::span<float> values) const override {
    const std::vector<std::uint32_t> indices = indices_of(values.size(), context);
    const float factor = factor_of(values.size(), indices.size());
    const auto* sent = view<float>(message);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      float& value = values[indices[i]];
      value = compress::finite_or_zero(value - sent[i] * factor);
    }
  }

 private:
  [[nodiscard]] std::vector<std::uint32_t> indices_of(std::size_t n,
                                                      const CodecContext& context) const {
    check_elements(name(), n);
    std::vector<std::uint32_t> indices(kept(n, density_));
    compress::select_random(n, compress::random_key(context.seed, context.step, context.begin),
                            indices);
    return indices;
  }
  [[nodiscard]] float factor_of(std::size_t n, std::size_t k) const noexcept {
    return unbiased_ && k > 0 ? static_cast<float>(static_cast<double>(n) / static_cast<double>(k))
                              : 1.0F;
  }

  double density_;
  bool unbiased_;
};

}  // namespace

std::unique_ptr<Codec> make_topk_codec(double density) {
  return std::make_unique<TopkCodec>(density);
}
std::unique_ptr<Codec> make_randomk_codec(double density, bool unbiased) {
  return std::make_unique<RandomkCodec>(density, unbiased);
}
std::unique_ptr<Codec> make_threshold_codec(double threshold) {
  return std::make_unique<ThresholdCodec>(threshold);
}

}  // namespace paceline
