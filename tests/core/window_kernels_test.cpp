// SPDX-License-Identifier: Apache-2.0
// The functors of a GPU whose units are places with neighbouring channels (pools, heads, tokens)
// against their definition, element by element and to the bit: channels that packs tile and others,
// arrays where packs begin and others, many lanes at once. Compiled without contraction.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>

#include "common/core/kernels_sequence.h"
#include "common/core/kernels_windows.h"
#include "common/core/stored.h"
#include "tests/core/inputs.h"
#include "tests/core/thread_lanes.h"

namespace paceline {
namespace {

using kernels::WindowGeometry;

/// Elements from `shift` past a multiple of 64 bytes on.
template <typename T>
class ShiftedArray {
 public:
  ShiftedArray(std::size_t n, std::size_t shift) : values_(n + shift + 64 / sizeof(T), T{}) {
    const auto address = reinterpret_cast<std::uintptr_t>(values_.data());
    begin_ = (64 - address % 64) % 64 / sizeof(T) + shift;
  }
  ShiftedArray(std::uint64_t key, std::size_t n, std::size_t shift) : ShiftedArray(n, shift) {
    const auto from = test::values(key, n, 2.0F);
    for (std::size_t i = 0; i < n; ++i) {
      at()[i] = static_cast<T>(from[i]);
    }
  }
  ShiftedArray(const ShiftedArray&) = delete;
  ShiftedArray& operator=(const ShiftedArray&) = delete;
  [[nodiscard]] T* at() { return values_.data() + begin_; }
  [[nodiscard]] float value(std::int64_t i) {
    return static_cast<float>(at()[static_cast<std::size_t>(i)]);
  }

 private:
  std::vector<T> values_;
  std::size_t begin_;
};

template <typename F>
void run_unit_lanes(bool lanes, std::int64_t units, const F& functor) {
  lanes ? test::for_each_by_lanes(units, functor) : kernels::for_each(units, functor);
}

std::size_t size_of(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Windows over samples in a format.
template <typename T>
struct WindowCase {
  WindowGeometry g;
  std::int64_t samples;
  std::size_t shift;
  bool lanes;

  [[nodiscard]] std::int64_t inputs() const { return samples * g.height * g.width * g.channels; }
  [[nodiscard]] std::int64_t outputs() const { return samples * g.rows * g.columns * g.channels; }
  [[nodiscard]] std::int64_t input(std::int64_t s, std::int64_t h, std::int64_t w,
                                   std::int64_t c) const {
    return ((s * g.height + h) * g.width + w) * g.channels + c;
  }

  void expect_all() const {
    ShiftedArray<T> x(1, size_of(inputs()), shift);
    x.at()[inputs() / 2] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    ShiftedArray<T> y(size_of(outputs()), shift);
    ShiftedArray<std::uint8_t> winner(size_of(outputs()), shift);
    const kernels::WindowMax<T> forward{x.at(), y.at(), winner.at(), g};
    EXPECT_EQ(forward.width(), shift == 0 && g.channels % kernels::kAccessPack<T> == 0
                                   ? kernels::kAccessPack<T>
                                   : 1);
    run_unit_lanes(lanes, forward.units(samples), forward);
    expect_maxima(x, y, winner);

    ShiftedArray<T> dy(2, size_of(outputs()), shift);
    ShiftedArray<T> dx(3, size_of(inputs()), shift);
    const kernels::WindowMaxGather<T> back{winner.at(), dy.at(), dx.at(), g};
    run_unit_lanes(lanes, back.units(samples), back);
    expect_gathered(winner, dy, dx);
  }

  void expect_maxima(ShiftedArray<T>& x, ShiftedArray<T>& y,
                     ShiftedArray<std::uint8_t>& winner) const {
    for (std::int64_t o = 0; o < outputs(); ++o) {
      const std::int64_t c = o % g.channels;
      const std::int64_t place = o / g.channels;
      const std::int64_t top = place / g.columns % g.rows * g.stride - g.padding;
      const std::int64_t left = place % g.columns * g.stride - g.padding;
      const std::int64_t sample = place / g.columns / g.rows;
      T best{};
      std::int64_t which = -1;
      for (std::int64_t k = 0; k < g.kernel * g.kernel; ++k) {
        const std::int64_t h = top + k / g.kernel;
        const std::int64_t w = left + k % g.kernel;
        if (h < 0 || h >= g.height || w < 0 || w >= g.width) {
          continue;
        }
        const T value = x.at()[input(sample, h, w, c)];
        if (which < 0 || static_cast<float>(value) > static_cast<float>(best)) {
          best = value;
          which = k;
        }
      }
      ASSERT_EQ(winner.at()[o], which) << o;
      ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(y.at() + o, 1)),
                                     std::as_bytes(std::span(&best, 1))))
          << o;
    }
  }

  void expect_gathered(ShiftedArray<std::uint8_t>& winner, ShiftedArray<T>& dy,
                       ShiftedArray<T>& dx) const {
    std::vector<float> expected(size_of(inputs()));
    for (std::int64_t o = 0; o < outputs(); ++o) {  // rows, then columns, as the sums' order is
      const std::int64_t place = o / g.channels;
      const std::int64_t which = winner.at()[o];
      const std::int64_t h = place / g.columns % g.rows * g.stride - g.padding + which / g.kernel;
      const std::int64_t w = place % g.columns * g.stride - g.padding + which % g.kernel;
      expected[size_of(input(place / g.columns / g.rows, h, w, o % g.channels))] += dy.value(o);
    }
    for (std::int64_t i = 0; i < inputs(); ++i) {
      ASSERT_EQ(dx.value(i), static_cast<float>(static_cast<T>(expected[size_of(i)]))) << i;
    }
  }
};

template <typename T>
void expect_windows() {
  const WindowGeometry shapes[] = {{5, 6, 0, 3, 3, 3, 2, 1},   {8, 8, 0, 4, 4, 3, 2, 1},
                                   {7, 5, 0, 3, 2, 2, 2, 0},   {6, 9, 0, 6, 9, 3, 1, 1},
                                   {11, 10, 0, 3, 2, 7, 3, 2}, {3, 3, 0, 1, 1, 3, 2, 0}};
  for (WindowGeometry g : shapes) {
    for (const std::int64_t channels : {1, 4, 11, 16, 64}) {
      for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
        SCOPED_TRACE(testing::Message()
                     << sizeof(T) << " bytes, " << g.height << "x" << g.width << "x" << channels
                     << ", kernel " << g.kernel << ", shifted by " << shift);
        g.channels = channels;
        WindowCase<T>{g, 2, shift, channels == 16}.expect_all();
      }
    }
  }
}

TEST(WindowKernels, ChooseAndGatherAsDefined) {
  expect_windows<float>();
  expect_windows<Half>();
  expect_windows<Bfloat>();
}

/// 2×2 maxima of which an odd extent leaves a row or column out.
template <typename T>
void expect_squares(const kernels::PoolGeometry& in, std::size_t shift, bool after_relu) {
  const std::int64_t samples = 2;
  const std::int64_t rows = in.height / 2;
  const std::int64_t columns = in.width / 2;
  const std::int64_t outputs = samples * rows * columns * in.channels;
  const std::int64_t inputs = samples * in.height * in.width * in.channels;
  ShiftedArray<T> y(1, size_of(outputs), shift);
  ShiftedArray<T> dy(2, size_of(outputs), shift);
  ShiftedArray<T> dx(3, size_of(inputs), shift);
  ShiftedArray<std::uint8_t> winner(size_of(outputs), shift);
  for (std::int64_t o = 0; o < outputs; ++o) {
    winner.at()[o] = static_cast<std::uint8_t>(o * 7 / 3 % 4);
  }
  const kernels::MaxPoolSpread<T> spread{y.at(), winner.at(), dy.at(), dx.at(), in, after_relu};
  run_unit_lanes(in.channels == 16, spread.units(samples), spread);
  for (std::int64_t i = 0; i < inputs; ++i) {
    const std::int64_t place = i / in.channels;
    const std::int64_t h = place / in.width % in.height;
    const std::int64_t w = place % in.width;
    float expected = 0.0F;
    if (h / 2 < rows && w / 2 < columns) {
      const std::int64_t line = place / in.width / in.height * rows + h / 2;
      const std::int64_t o = (line * columns + w / 2) * in.channels + i % in.channels;
      const bool passes = !after_relu || y.value(o) > 0.0F;
      expected = winner.at()[o] == h % 2 * 2 + w % 2 && passes ? dy.value(o) : 0.0F;
    }
    ASSERT_EQ(dx.value(i), expected) << i;
  }
}

template <typename T>
void expect_averages(std::int64_t positions, std::int64_t channels, std::size_t shift) {
  const std::int64_t samples = 3;
  const std::int64_t inputs = samples * positions * channels;
  ShiftedArray<T> x(1, size_of(inputs), shift);
  ShiftedArray<T> y(size_of(samples * channels), shift);
  ShiftedArray<T> dx(2, size_of(inputs), shift);
  const kernels::ChannelAverage<T> mean{x.at(), y.at(), positions, channels};
  run_unit_lanes(channels == 16, mean.units(samples), mean);
  const kernels::ChannelAverageGradient<T> spread{y.at(), dx.at(), positions, channels};
  run_unit_lanes(channels == 16, spread.units(samples), spread);
  const auto count = static_cast<float>(positions);
  for (std::int64_t i = 0; i < samples * channels; ++i) {
    const std::int64_t first = i / channels * positions * channels + i % channels;
    float total = 0.0F;
    for (std::int64_t p = 0; p < positions; ++p) {
      total += x.value(first + p * channels);
    }
    ASSERT_EQ(y.value(i), static_cast<float>(static_cast<T>(total / count))) << i;
    for (std::int64_t p = 0; p < positions; ++p) {
      ASSERT_EQ(dx.value(first + p * channels),
                static_cast<float>(static_cast<T>(y.value(i) / count)));
    }
  }
}

template <typename T>
void expect_other_pools() {
  for (const std::int64_t channels : {1, 4, 11, 16, 64}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
      SCOPED_TRACE(testing::Message()
                   << sizeof(T) << " bytes, " << channels << " channels, shifted by " << shift);
      for (const bool after_relu : {false, true}) {
        expect_squares<T>({5, 7, channels}, shift, after_relu);
        expect_squares<T>({4, 6, channels}, shift, after_relu);
      }
      for (const std::int64_t positions : {1, 8, 9, 49}) {
        expect_averages<T>(positions, channels, shift);
      }
    }
  }
}

TEST(WindowKernels, SpreadAndAverageAsDefined) {
  expect_other_pools<float>();
  expect_other_pools<Half>();
  expect_other_pools<Bfloat>();
}

template <typename T>
void expect_heads(std::int64_t width, std::size_t shift) {
  const kernels::HeadLayout layout{2, 3, 3, 4, width};
  const std::size_t n = size_of(layout.elements());
  ShiftedArray<T> together(1, n, shift);
  ShiftedArray<T> apart(n, shift);
  ShiftedArray<T> back(n, shift);
  const kernels::SplitHeads<T> split{together.at(), apart.at(), layout};
  const kernels::JoinHeads<T> join{apart.at(), back.at(), layout};
  run_unit_lanes(width == 16, split.units(), split);
  run_unit_lanes(width == 16, join.units(), join);
  for (std::int64_t i = 0; i < layout.elements(); ++i) {
    const std::int64_t row = i / (3 * 4 * width);
    const std::int64_t part = i / (4 * width) % 3;
    const std::int64_t head = i / width % 4;
    const std::int64_t to = (((part * 2 + row / 3) * 4 + head) * 3 + row % 3) * width + i % width;
    ASSERT_EQ(apart.value(to), together.value(i)) << i;
    ASSERT_EQ(back.value(i), together.value(i)) << i;
  }
}

template <typename T>
void expect_tokens(std::int64_t width, std::size_t shift) {
  const std::int64_t vocabulary = 7;
  const std::int64_t positions = 3;
  const std::vector<float> tokens{0.0F, 6.0F, 2.0F, 9.0F, -1.0F, 3.0F};
  ShiftedArray<float> words(1, size_of(vocabulary * width), shift);
  ShiftedArray<float> places(2, size_of(positions * width), shift);
  ShiftedArray<T> y(size_of(6 * width), shift);
  const kernels::EmbedTokens<T> embed{tokens.data(), words.at(), places.at(), y.at(),
                                      vocabulary,    positions,  width};
  run_unit_lanes(width == 16, embed.units(6), embed);
  for (std::int64_t i = 0; i < 6 * width; ++i) {
    const std::int64_t row = i / width;
    const std::int64_t token = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(tokens[size_of(row)]), 0, vocabulary - 1);
    const float sum =
        words.value(token * width + i % width) + places.value(row % 3 * width + i % width);
    ASSERT_EQ(y.value(i), static_cast<float>(static_cast<T>(sum))) << i;
  }
}

template <typename T>
void expect_sequences() {
  for (const std::int64_t width : {1, 4, 5, 8, 16, 64}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
      SCOPED_TRACE(testing::Message()
                   << sizeof(T) << " bytes, width " << width << ", shifted by " << shift);
      expect_heads<T>(width, shift);
      expect_tokens<T>(width, shift);
    }
  }
}

TEST(WindowKernels, MoveHeadsAndTokensAsDefined) {
  expect_sequences<float>();
  expect_sequences<Half>();
  expect_sequences<Bfloat>();
}

}  // namespace
}  // namespace paceline
