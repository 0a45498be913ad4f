// SPDX-License-Identifier: Apache-2.0
// The functors whose lanes own columns, and the sums that lanes share: eight lanes at once against
// one lane, and the moments against their definition in double; column by column, row by row, for
// shapes with every tail, to the bit (so this file is compiled without contraction).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/core/kernels_column_gradients.h"
#include "common/core/kernels_columns.h"
#include "common/core/kernels_sequence.h"
#include "common/core/kernels_stored.h"
#include "common/core/stored.h"
#include "tests/core/inputs.h"
#include "tests/core/thread_lanes.h"

namespace paceline {
namespace {

using kernels::ColumnParts;

/// Parts that do not divide the rows; columns that do not fill their second tile.
constexpr ColumnParts kCut{2, 9, 34, 5};
constexpr std::size_t kRows = 18;
constexpr std::size_t kColumns = 34;
constexpr std::size_t kPlaces = 10;

template <typename F>
void run(bool lanes, std::int64_t rows, const F& functor) {
  lanes ? test::for_rows_by_lanes(rows, functor) : kernels::for_rows(rows, functor);
}

template <typename F>
void run_units(bool lanes, const F& functor) {
  lanes ? test::for_each_by_lanes(functor.units(), functor)
        : kernels::for_each(functor.units(), functor);
}

/// The first rows by lanes, whose collectives cost a test much, the others by one.
template <typename F>
void merge(bool lanes, std::int64_t rows, const F& functor) {
  kernels::for_rows(rows, functor);
  if (lanes) {
    test::for_rows_by_lanes(3, functor);
  }
}

std::vector<float> shifted_values() {
  auto x = test::values(1, kRows * kColumns);
  for (float& value : x) {
    value += 30.0F;
  }
  return x;
}

struct Moments {
  explicit Moments(bool lanes) {
    const auto x = shifted_values();
    std::vector<double> part_mean(kPlaces * kColumns);
    std::vector<double> part_m2(part_mean.size());
    run_units(lanes,
              kernels::ColumnMoments<float>{x.data(), part_mean.data(), part_m2.data(), kCut});
    merge(lanes, kCut.slabs * kCut.columns,
          kernels::MergedMoments{part_mean.data(), part_m2.data(), mean.data(), m2.data(), kCut});
  }
  std::vector<double> mean = std::vector<double>(2 * kColumns);
  std::vector<double> m2 = mean;
};

TEST(ColumnMoments, AreMeansAndSquaresAroundThem) {
  const auto x = shifted_values();
  for (const bool lanes : {false, true}) {
    const Moments moments(lanes);
    for (std::size_t slab = 0; slab < 2; ++slab) {
      for (std::size_t c = 0; c < kColumns; ++c) {
        const auto value = [&](std::size_t row) {
          return static_cast<double>(x[(slab * 9 + row) * kColumns + c]);
        };
        double mean = 0.0;
        for (std::size_t row = 0; row < 9; ++row) {
          mean += value(row) / 9.0;
        }
        double m2 = 0.0;
        for (std::size_t row = 0; row < 9; ++row) {
          m2 += (value(row) - mean) * (value(row) - mean);
        }
        ASSERT_NEAR(moments.mean[slab * kColumns + c], mean, 1e-6 * mean);
        ASSERT_NEAR(moments.m2[slab * kColumns + c], m2, 1e-5 * m2);
      }
    }
  }
}

struct Gradients {
  explicit Gradients(bool lanes) {
    const auto x = test::values(1, kRows * kColumns);
    const auto y = test::values(2, kRows * kColumns);
    const auto statistics = test::values(4, 2 * kColumns);
    std::vector<double> first(kPlaces * kColumns);
    std::vector<double> second(first.size());
    run_units(lanes, kernels::ColumnGradientSums<float>{x.data(), y.data(), dy.data(),
                                                        statistics.data(), statistics.data(),
                                                        first.data(), second.data(), kCut});
    merge(lanes, kCut.slabs * kCut.columns,
          kernels::MergedSums{first.data(), second.data(), sum.data(), weighted.data(), kCut});
    const float* s = statistics.data();
    run_units(lanes, kernels::ColumnInputGradient<float>{x.data(), dy.data(), dx.data(), s, s, s, s,
                                                         s, kCut});
    run_units(lanes, kernels::ColumnNormalise<float>{x.data(), out.data(), y.data(), s, s, s, s,
                                                     kCut, true});
    const ColumnParts one{1, kRows, kColumns, 4};
    std::vector<float> parts(4 * kColumns);
    run_units(lanes, kernels::ColumnBiasSums<float>{nullptr, dy.data(), parts.data(), one});
    merge(lanes, one.columns, kernels::MergedBias{parts.data(), bias.data(), one});
  }
  std::vector<float> dy = test::values(3, kRows* kColumns);
  std::vector<double> sum = std::vector<double>(2 * kColumns);
  std::vector<double> weighted = sum;
  std::vector<float> dx = std::vector<float>(kRows * kColumns);
  std::vector<float> out = dx;
  std::vector<float> bias = std::vector<float>(kColumns);
};

TEST(ColumnGradients, TeamOfLanesMatchesOne) {
  const Gradients one(false);
  const Gradients team(true);
  EXPECT_EQ(team.dy, one.dy);
  EXPECT_EQ(team.dx, one.dx);
  EXPECT_EQ(team.out, one.out);
  for (std::size_t i = 0; i < one.sum.size(); ++i) {
    EXPECT_NEAR(team.sum[i], one.sum[i], 1e-12);
    EXPECT_NEAR(team.weighted[i], one.weighted[i], 1e-12);
  }
  for (std::size_t c = 0; c < kColumns; ++c) {
    EXPECT_NEAR(team.bias[c], one.bias[c], 1e-6);
    EXPECT_NEAR(static_cast<double>(one.bias[c]), one.sum[c] + one.sum[kColumns + c], 1e-5);
  }
}

/// A batch in a format, its arrays beginning `shift` elements past where packs could, and what the
/// functors make of it.
template <typename T>
struct ColumnBatch {
  ColumnBatch(const ColumnParts& parts, std::size_t shift)
      : cut(parts),
        offset(shift),
        count(static_cast<std::size_t>(cut.slabs * cut.rows * cut.columns)),
        statistics(test::values(4, static_cast<std::size_t>(cut.slabs * cut.columns) + 1)),
        row_statistics(test::values(5, static_cast<std::size_t>(cut.slabs * cut.rows))) {
    x = stored(1, 3.0F);
    y = stored(2, 0.0F);
    dy = stored(3, 0.0F);
    dx = dy;
    const auto places = static_cast<std::size_t>(cut.slabs * cut.parts * cut.columns);
    first.resize(places);
    second.resize(places);
    bias.resize(places);
  }
  [[nodiscard]] std::vector<T> stored(std::uint64_t key, float plus) const {
    std::vector<T> out;
    for (const float value : test::values(key, count + offset)) {
      out.push_back(static_cast<T>(value + plus));
    }
    return out;
  }
  [[nodiscard]] T* at(std::vector<T>& values) const { return values.data() + offset; }
  [[nodiscard]] float value(const std::vector<T>& values, std::int64_t row, std::int64_t c) const {
    return static_cast<float>(values[offset + static_cast<std::size_t>(row * cut.columns + c)]);
  }
  /// visit(place, column, first row, row beyond the part).
  template <typename Visit>
  void for_columns(const Visit& visit) const {
    for (std::int64_t place = 0; place < cut.slabs * cut.parts; ++place) {
      const std::int64_t part = place % cut.parts;
      const std::int64_t begin = place / cut.parts * cut.rows + part * cut.height();
      for (std::int64_t c = 0; c < cut.columns; ++c) {
        visit(place, c, begin, begin + cut.rows_of(part));
      }
    }
  }
  [[nodiscard]] std::size_t slot(std::int64_t place, std::int64_t c) const {
    return static_cast<std::size_t>(place * cut.columns + c);
  }
  [[nodiscard]] float mean_of(std::int64_t place, std::int64_t c) const {
    return statistics[slot(place / cut.parts, c)];
  }

  ColumnParts cut;
  std::size_t offset;
  std::size_t count;
  std::vector<float> statistics;  ///< [slab, column], taken for all that there are
  std::vector<float> row_statistics;
  std::vector<T> x;
  std::vector<T> y;
  std::vector<T> dy;
  std::vector<T> dx;
  std::vector<double> first;
  std::vector<double> second;
  std::vector<float> bias;
};

template <typename T>
void expect_moments(ColumnBatch<T>& b) {
  run_units(false, kernels::ColumnMoments<T>{b.at(b.x), b.first.data(), b.second.data(), b.cut});
  b.for_columns([&](std::int64_t place, std::int64_t c, std::int64_t begin, std::int64_t end) {
    double mean = 0.0;
    double m2 = 0.0;
    double count = 0.0;
    for (std::int64_t block = begin; block < end; block += 64) {
      const float origin = b.value(b.x, block, c);
      const std::int64_t beyond = std::min(block + 64, end);
      float plain = 0.0F;
      float squares = 0.0F;
      for (std::int64_t row = block; row < beyond; ++row) {
        const float distance = b.value(b.x, row, c) - origin;
        plain += distance;
        squares += distance * distance;
      }
      const auto rows = static_cast<double>(beyond - block);
      const double shift = static_cast<double>(plain) / rows;
      const double around = static_cast<double>(squares) - static_cast<double>(plain) * shift;
      const double share = rows / (count + rows);
      const double distance = static_cast<double>(origin) + shift - mean;
      mean += distance * share;
      m2 += std::max(around, 0.0) + distance * distance * count * share;
      count += rows;
    }
    ASSERT_EQ(b.first[b.slot(place, c)], mean);
    ASSERT_EQ(b.second[b.slot(place, c)], m2);
  });
}

/// `masks`: a ReLU's output decides what passes, and dy changes. With sums of biases and of a norm
/// of rows.
template <typename T>
void expect_gradient_sums(ColumnBatch<T>& b, bool masks) {
  const std::vector<T> before = b.dy;
  const float* s = b.statistics.data();
  T* const y = masks ? b.at(b.y) : nullptr;
  run_units(false, kernels::ColumnGradientSums<T>{b.at(b.x), y, b.at(b.dy), s, s, b.first.data(),
                                                  b.second.data(), b.cut});
  std::vector<T> dy = before;
  run_units(false, kernels::ColumnBiasSums<T>{y, dy.data() + b.offset, b.bias.data(), b.cut});
  std::vector<double> rows_first(b.first.size());
  std::vector<double> rows_second(b.first.size());
  const float* r = b.row_statistics.data();
  run_units(false, kernels::RowNormColumnSums<T>{b.at(b.x), b.at(b.dy), r, r, rows_first.data(),
                                                 rows_second.data(), b.cut});
  b.for_columns([&](std::int64_t place, std::int64_t c, std::int64_t begin, std::int64_t end) {
    const float mean = b.mean_of(place, c);
    double total = 0.0;
    double total_x = 0.0;
    double bias = 0.0;
    double of_rows = 0.0;
    for (std::int64_t block = begin; block < end; block += 64) {
      float plain = 0.0F;
      float weighted = 0.0F;
      for (std::int64_t row = block; row < std::min(block + 64, end); ++row) {
        const bool passes = !masks || b.value(b.y, row, c) > 0.0F;
        const float d = passes ? b.value(before, row, c) : 0.0F;
        const float own = r[row];
        ASSERT_EQ(b.value(b.dy, row, c), d);
        ASSERT_EQ(b.value(dy, row, c), d);
        plain += d;
        weighted += d * ((b.value(b.x, row, c) - mean) * mean);
        bias += static_cast<double>(d);
        of_rows += static_cast<double>(d * ((b.value(b.x, row, c) - own) * own));
      }
      total += static_cast<double>(plain);
      total_x += static_cast<double>(weighted);
    }
    ASSERT_EQ(b.first[b.slot(place, c)], total);
    ASSERT_EQ(b.second[b.slot(place, c)], total_x);
    ASSERT_EQ(b.bias[b.slot(place, c)], static_cast<float>(bias));
    ASSERT_EQ(rows_first[b.slot(place, c)], bias);
    ASSERT_EQ(rows_second[b.slot(place, c)], of_rows);
  });
}

template <typename T>
void expect_elements(ColumnBatch<T>& b, bool adds) {
  std::vector<T> out = b.dx;
  const float* s = b.statistics.data();
  run_units(false,
            kernels::ColumnNormalise<T>{b.at(b.x), out.data() + b.offset,
                                        adds ? b.at(b.y) : nullptr, s, s, s + 1, s, b.cut, adds});
  run_units(false, kernels::ColumnInputGradient<T>{b.at(b.x), b.at(b.dy), b.at(b.dx), s, s, s + 1,
                                                   s, s, b.cut});
  b.for_columns([&](std::int64_t place, std::int64_t c, std::int64_t begin, std::int64_t end) {
    const float mean = b.mean_of(place, c);
    const float gamma = s[c + 1];
    const float beta = s[c];
    for (std::int64_t row = begin; row < end; ++row) {
      const float centered = b.value(b.x, row, c) - mean;
      float y = centered * (mean * gamma) + beta;
      y = adds ? std::max(y + b.value(b.y, row, c), 0.0F) : y;
      ASSERT_EQ(b.value(out, row, c), static_cast<float>(static_cast<T>(y)));
      const float dx = mean * (gamma * b.value(b.dy, row, c) - mean - centered * mean * mean);
      ASSERT_EQ(b.value(b.dx, row, c), static_cast<float>(static_cast<T>(dx)));
    }
  });
}

template <typename T>
void expect_columns(const ColumnParts& cut, std::size_t shift) {
  SCOPED_TRACE(testing::Message() << sizeof(T) << " bytes, " << cut.slabs << " slabs, " << cut.rows
                                  << " rows, " << cut.columns << " columns, " << cut.parts
                                  << " parts, shifted by " << shift);
  for (const bool with : {false, true}) {
    ColumnBatch<T> batch(cut, shift);
    expect_moments(batch);
    expect_gradient_sums(batch, with);
    expect_elements(batch, with);
  }
}

template <typename T>
void expect_all_shapes() {
  for (const std::int64_t columns : {1, 3, 16, 33, 64, 2048}) {
    for (const std::int64_t rows : {1, 7, 8, 9, 1000}) {
      if (columns * rows > 100'000) {
        continue;
      }
      for (const std::int64_t parts : {1, 3}) {
        expect_columns<T>({2, rows, columns, parts}, 0);
      }
      expect_columns<T>({1, rows, columns, 2}, 1);
    }
  }
}

TEST(ColumnKernels, AddEveryColumnInTheOrderOfItsRows) {
  expect_all_shapes<float>();
  expect_all_shapes<Half>();
  expect_all_shapes<Bfloat>();
}

TEST(ColumnKernels, MoveSeveralElementsWhereRowsAreWholePacksOfThem) {
  alignas(16) static constexpr Bfloat kMemory[16] = {};
  const auto sums = [](const Bfloat* x, std::int64_t columns) {
    return kernels::ColumnMoments<Bfloat>{x, nullptr, nullptr, {1, 10, columns, 2}}.units();
  };
  EXPECT_EQ(sums(kMemory, 64), 64);
  EXPECT_EQ(sums(kMemory, 33), 66);
  EXPECT_EQ(sums(kMemory + 2, 64), 64);
  EXPECT_EQ(sums(kMemory + 1, 64), 128);
  EXPECT_EQ(kernels::pack_width<4>(8, kMemory, static_cast<const Bfloat*>(nullptr)), 4);
  EXPECT_EQ(kernels::pack_width<4>(8, kMemory, kMemory + 2), 1);
  EXPECT_EQ(kernels::pack_width<4>(6, kMemory), 1);
}

TEST(LossSums, AddUpAllParts) {
  const std::size_t places = 1003;
  const auto loss = test::values(5, places);
  std::vector<std::uint8_t> correct(places);
  double losses = 0.0;
  double right = 0.0;
  for (std::size_t i = 0; i < places; ++i) {
    correct[i] = i % 3 == 0 ? 1 : 0;
    losses += static_cast<double>(loss[i]);
    right += correct[i];
  }
  for (const bool lanes : {false, true}) {
    std::vector<kernels::LossSum> parts(7);
    kernels::LossSum total{};
    run(lanes, 7, kernels::LossParts{loss.data(), correct.data(), parts.data(), 1003, 7});
    run(lanes, 1, kernels::LossTotal{parts.data(), &total, 7, 0.5});
    EXPECT_NEAR(total.loss, 0.5 * losses, 1e-12 * places);
    EXPECT_EQ(total.correct, 0.5 * right);
  }
}

}  // namespace
}  // namespace paceline
